"""Why a healthy run is slow, and what its curves show: with the number, and not on a few steps."""

import json
import math
import random

import pytest

from phalanx.diagnose.curves import judge_curves
from phalanx.diagnose.scene import Scene
from phalanx.diagnose.slow import judge_speed
from tests.fixtures.recorded import RecordedWriter
from tests.unit.diagnose.run_folders import folder, steps

PLAN = {"ranks": 2, "workers": 2, "micro_batch_size": 8, "lr": 0.01, "samples_per_s": 100.0}


def falling(count=100):
    noise = random.Random(1)
    return [2.0 * math.exp(-n / 40) + 0.1 * noise.random() for n in range(count)]


@pytest.fixture
def run(tmp_path):
    return folder(tmp_path, is_script=False, plan=PLAN, command=("phalanx", "train", "job.yaml"))


def slugs(found):
    return [finding.slug for finding in found]


def use(run, samples, count=6, **same):
    """`usage` events of each rank."""
    events = RecordedWriter(run.events, "supervisor")
    for _ in range(count):
        for rank, sample in enumerate(samples):
            events.write("usage", rank=rank, step=1, memory_bytes=1, **same, **sample)
    events.close()


def test_a_healthy_run_has_nothing_to_say(run):
    steps(run, falling(), samples_per_s=100.0, data_wait=0.02, alloc_retries=0, major_faults=5)
    assert judge_speed(Scene(run)) == []
    assert judge_curves(Scene(run)) == []


def test_loader_bound_with_the_share_and_what_it_costs(run):
    run.machine_file.write_text('{"cpu": {"usable_cores": 16}}')
    steps(run, falling(10), samples_per_s=60.0, data_wait=lambda n: 0.9 if n == 1 else 0.4)
    (found,) = judge_speed(Scene(run))
    assert found.slug == "slow-loader"
    assert "40%" in found.what
    assert "60 samples/s; without waiting 100" in found.why
    assert "phalanx train job.yaml loader.workers=4" in found.fix


def test_memory_thrash_is_counted(run):
    steps(run, falling(20), samples_per_s=60.0, data_wait=0.0, alloc_retries=lambda n: 2 * n)
    (found,) = judge_speed(Scene(run))
    assert found.slug == "slow-memory"
    assert "36 times in 19 logged steps" in found.what
    assert "micro_batch_size=4" in found.fix


def test_pages_read_back_from_disk_are_counted(run):
    steps(run, falling(20), data_wait=0.0, major_faults=lambda n: 5000 * n)
    (found,) = judge_speed(Scene(run))
    assert found.slug == "slow-swap"
    assert "5,000 pages a second" in found.what


@pytest.mark.parametrize(
    ("first", "second", "slug"),
    [
        ({"gpu_percent": 95, "cpu_percent": 90.0}, {"gpu_percent": 30}, "unequal-load"),
        ({"gpu_percent": 95, "cpu_percent": 90.0}, {"gpu_percent": 0}, "unequal-load"),
        ({"gpu_percent": 40, "cpu_percent": 100.0}, {"gpu_percent": 42}, "slow-host"),
        ({"gpu_percent": 40, "cpu_percent": 700.0}, {"gpu_percent": 42}, "slow-loader-usage"),
        ({"gpu_percent": 40, "cpu_percent": 20.0}, {"gpu_percent": 42}, "slow-waiting"),
    ],
)
def test_what_gpus_and_processes_show(tmp_path, first, second, slug):
    run = folder(tmp_path)
    use(run, [first, {**first, **second}])
    (found,) = judge_speed(Scene(run))
    assert found.slug == slug
    assert str(second["gpu_percent"]) in found.what or "41" in found.what
    if second["gpu_percent"] == 0:
        assert "LOCAL_RANK" in found.fix


def test_too_few_samples_of_usage_say_nothing(tmp_path):
    run = folder(tmp_path)
    use(run, [{"gpu_percent": 90}, {"gpu_percent": 5}], count=2)
    assert judge_speed(Scene(run)) == []


FORECAST = {
    **{"samples_per_s": 100.0, "step_s": 1.0, "spread": 0.2, "bottleneck": "device"},
    **{"exposed_s": 0.0, "waiting_s": 0.0, "host_s": 0.1, "device_s": 0.9},
}


@pytest.mark.parametrize(
    ("changes", "rate", "slug"),
    [
        ({}, 95.0, None),
        ({"exposed_s": 0.3}, 95.0, "slow-communication"),
        ({"bottleneck": "host", "host_s": 0.9, "device_s": 0.3}, 95.0, "slow-host-predicted"),
        ({}, 40.0, "slow-unknown"),
    ],
)
def test_where_nothing_waits_the_plan_says_what_it_expects(run, changes, rate, slug):
    plan = json.loads(run.plan_file.read_text())
    device = {"value": "cuda", "reason": ""}
    plan |= {"device": device, "forecast": {**FORECAST, **changes}}
    run.plan_file.write_text(json.dumps(plan))
    steps(run, falling(10), samples_per_s=rate, data_wait=0.0)
    found = judge_speed(Scene(run))
    assert slugs(found) == ([slug] if slug else [])
    assert all("plan" in f.what or "events do not say why" in f.what for f in found)


def test_links_that_nccl_cannot_use_are_a_note(run):
    steps(run, falling(5))
    run.nccl_log(0).write_text("NCCL INFO P2P is disabled between connected GPUs 0 and 1.\n")
    assert slugs(judge_speed(Scene(run))) == ["slow-no-p2p"]


def test_a_straggler_that_was_found_on_the_way_is_said_again(run):
    events = RecordedWriter(run.events, "supervisor")
    record = {"slug": "straggler", "what": "rank 1 is slow", "why": "3x", "fix": "x"}
    events.write("finding", finding={**record, "severity": "warning"})
    events.close()
    assert slugs(judge_speed(Scene(run))) == ["straggler"]


def swinging(count=100):
    return [3.0 if n % 4 < 2 else 0.4 for n in range(count)]


@pytest.mark.parametrize(
    ("losses", "slug"),
    [
        (swinging(), "loss-oscillates"),
        ([2.3 + 0.01 * (n % 3) for n in range(100)], "loss-flat"),
        ([2.0 - 0.02 * n for n in range(50)] + [1.0 + 0.05 * n for n in range(50)], "loss-rises"),
        ([*falling(60), math.nan, math.nan], "not-finite-loss"),
        (swinging(30), None),
        (falling(), None),
        ([-n for n in range(100)], None),
    ],
)
def test_curves_are_named(run, losses, slug):
    steps(run, losses)
    assert slugs(judge_curves(Scene(run))) == ([slug] if slug else [])


def test_a_collapsed_loss_scale_is_named(run):
    steps(run, falling(), loss_scale=lambda n: 65536.0 / 2**n)
    (found,) = judge_curves(Scene(run))
    assert found.slug == "fp16-scale-collapsed"
    assert "32768" in found.what
    assert "precision=bf16" in found.fix


def test_a_few_overflows_in_the_beginning_are_in_order(run):
    steps(run, falling(), loss_scale=lambda n: 65536.0 / 2 ** min(n, 4))
    assert judge_curves(Scene(run)) == []


def test_steps_that_changed_nothing_are_counted(run):
    steps(run, falling())
    events = RecordedWriter(run.events, "rank-0")
    for step in (7, 9):
        events.write("skipped", step=step, ids=[4, 17])
    events.close()
    (found,) = judge_curves(Scene(run))
    assert found.slug == "steps-skipped"
    assert "2 steps" in found.what and "step 9" in found.what and "17" in found.why
