"""How long a step takes: its parts, what holds it up, and how sure that is."""

import pytest

from phalanx.machine import parse_machine
from phalanx.machine.calibration import Calibration, MeasuredStep
from phalanx.planner.schema.footprint import Line
from phalanx.planner.schema.operators import Operator, Shape
from phalanx.planner.schema.trace import FetchTime
from phalanx.planner.solve import solve_plan
from phalanx.planner.time.bench_points import job_key


def product(width, phase):
    """A square product for each sample."""
    shape = Shape(Line(1, 0), Line(0, width), Line(width, 0), Line(width, 0))
    size = Line(4 * width**2, 8 * width**2)
    return Operator("product", phase, "half", 1, Line(0, 2 * width**3), size, shape, "mm")


def operators(width=4096, calls=1):
    return {"bf16": calls * [product(width, "forward"), *2 * [product(width, "backward")]]}


LARGE = {
    "operators": operators(),
    "activation_bytes": {"bf16": [Line(0, 2**20)]},
    "num_samples": 10_000,
    "num_test_samples": 0,
    "fetch_line": FetchTime(0.0, 1e-9),
    "parameters": 2**20,
    "parameter_bytes": 2**22,
    "trainable_bytes": 2**22,
}


@pytest.fixture
def plan_on(make_job, make_trace):
    def plan_on(machine, *, calibration=None, job=None, **changes):
        trace = make_trace(**{**LARGE, **changes})
        # One micro-batch on each rank: nothing to choose.
        keys = {"global_batch_size": 64, "micro_batch_size": 8} | (job or {})
        found, _ = solve_plan(
            make_job(**keys), parse_machine(machine), trace, calibration=calibration
        )
        return found

    return plan_on


CASES = {
    "device": {},
    "host": {"operators": operators(width=8, calls=1000)},
    "communication": {"parameter_bytes": 2**32, "trainable_bytes": 2**32, "parameters": 2**30},
    "data": {"fetch_line": FetchTime(0.0, 0.5)},
}


@pytest.mark.parametrize("bottleneck", CASES)
def test_parts_add_up_and_the_longest_is_named(plan_on, bottleneck):
    plan = plan_on("8x RTX 3090", **CASES[bottleneck])
    forecast = plan.predicted.forecast
    assert forecast.bottleneck == bottleneck
    parts = forecast.compute_s + forecast.exposed_s + forecast.waiting_s + forecast.data_s
    assert (
        forecast.step_s == pytest.approx(parts) and plan.predicted.step_s.value == forecast.step_s
    )
    assert forecast.compute_s == pytest.approx(max(forecast.device_s, forecast.host_s))
    assert forecast.exposed_s <= forecast.exchange_s + forecast.compute_s
    assert forecast.samples_per_s == pytest.approx(64 / forecast.step_s)
    assert forecast.duration_s == pytest.approx(plan.batch.total_steps.value * forecast.step_s)
    assert forecast.gpu_hours == pytest.approx(8 * forecast.duration_s / 3600)


def test_one_rank_neither_talks_nor_waits(plan_on):
    forecast = plan_on("1x RTX 3090").predicted.forecast
    assert (forecast.exposed_s, forecast.exchange_s, forecast.waiting_s) == (0, 0, 0)


def test_a_step_waits_for_data_only_as_long_as_the_loader_takes_longer(plan_on):
    slow = plan_on("8x RTX 3090", **CASES["data"]).predicted.forecast
    assert slow.step_s == pytest.approx(slow.loader_s)
    halved = plan_on("8x RTX 3090", fetch_line=FetchTime(0.0, 0.25)).predicted.forecast
    assert halved.loader_s == pytest.approx(slow.loader_s / 2)
    quick = plan_on("8x RTX 3090").predicted.forecast
    assert quick.data_s == 0


def test_a_fetch_of_many_samples_is_not_many_fetches(plan_on):
    """Vectorised data in a large batch is no reason to wait, nor for loader processes."""
    large = {"global_batch_size": 131_072, "micro_batch_size": 16_384}
    line, old = FetchTime(1e-4, 1e-8), 1e-4 / 32 + 1e-8
    mended = plan_on("8x RTX 3090", job=large, num_samples=10**6, fetch_line=line)
    scaled = plan_on("8x RTX 3090", job=large, num_samples=10**6, fetch_line=None, fetch_s=old)
    assert mended.loading.workers.value == 0 < scaled.loading.workers.value


def test_faster_cards_more_of_them_and_less_work_are_faster(plan_on):
    slow, fast = plan_on("8x RTX 3090").predicted.forecast, plan_on("8x H100").predicted.forecast
    assert fast.compute_s < slow.compute_s
    less = plan_on("8x RTX 3090", operators=operators(width=2048)).predicted.forecast
    assert less.compute_s < slow.compute_s
    job = {"micro_batch_size": None}
    one, eight = plan_on("1x H100", job=job), plan_on("8x H100", job=job)
    assert 1 < eight.predicted.speedup.value <= 8 and one.predicted.speedup.value == 1
    assert "efficiency" in eight.predicted.speedup.reason


def test_a_measured_step_makes_the_prediction_its_own_and_narrower(plan_on):
    before = plan_on("1x RTX 3090", job={"global_batch_size": 8})
    assert "catalogue" in before.predicted.step_s.reason
    step = MeasuredStep(
        job_key=job_key(before),
        micro_batch=8,
        accumulation=1,
        step_s=3 * before.predicted.forecast.step_s,
        data_s=0.0,
        compute_s=3 * before.predicted.forecast.step_s,
        communication_s=0.0,
        overhead_s=0.0,
        fetch_s=1e-9,
    )
    gpu = parse_machine("1x RTX 3090").gpus[0].name
    measured = Calibration(
        device=gpu, measured_at="2026-01-01", torch_version="2.13", steps=(step,)
    )
    after = plan_on("1x RTX 3090", job={"global_batch_size": 8}, calibration=measured)
    assert after.predicted.forecast.step_s == pytest.approx(step.step_s)
    assert after.predicted.forecast.spread < before.predicted.forecast.spread
    low, high = after.predicted.forecast.interval(after.predicted.forecast.step_s)
    assert low < step.step_s < high
    other = Calibration(device="other", measured_at="2026", torch_version="2.13", steps=(step,))
    assert plan_on("1x RTX 3090", job={"global_batch_size": 8}, calibration=other) == before


def test_values_of_real_samples_widen_the_interval(plan_on):
    known = plan_on("1x RTX 3090").predicted.forecast
    sampled = plan_on("1x RTX 3090", activations_sampled="it calls .item()").predicted.forecast
    assert sampled.spread == pytest.approx(1.5 * known.spread)
    assert sampled.step_s == known.step_s


def test_without_operators_and_measurements_there_is_no_forecast(plan_on):
    plan = plan_on("8x RTX 3090", operators={})
    assert plan.predicted.forecast is None
    assert (plan.predicted.step_s.value, plan.predicted.duration_s.value) == (None, None)


def test_evaluations_and_checkpointing_take_time(plan_on):
    plain = plan_on("8x RTX 3090").predicted.forecast
    assert (
        plan_on("8x RTX 3090", num_test_samples=5000).predicted.forecast.duration_s
        > plain.duration_s
    )
    recomputed = plan_on(
        "8x RTX 3090",
        job={"activation_checkpointing": "on"},
        num_blocks=2,
        checkpointed_bytes={"bf16": [Line(0, 2**19)]},
        checkpointed_operators={"bf16": [*operators()["bf16"], product(4096, "backward")]},
    ).predicted.forecast
    assert recomputed.compute_s > plain.compute_s


def test_state_in_host_memory_costs_copies_and_an_update_there(plan_on):
    large = {"parameter_bytes": 2**32, "trainable_bytes": 2**32, "parameters": 2**30}
    near, far = (
        plan_on(
            "8x A100-80", job={"strategy": "fsdp", "fsdp": {"offload": kept}}, **large
        ).predicted.forecast
        for kept in (False, True)
    )
    # Of 4 GiB an eighth on each rank: fetched twice, sent once over PCIe 4, then seven passes.
    share = 2**32 / 8
    assert far.exposed_s - near.exposed_s == pytest.approx(
        3 * share / 24e9 + 7 * share / 10e9, rel=0.01
    )
    assert far.device_s < near.device_s, "the update is the CPU's"
    assert far.spread > near.spread, "a guess"


@pytest.mark.parametrize(("bottleneck", "is_slower"), [("host", True), ("device", False)])
def test_gpus_that_are_slower_together_than_one_are_said(
    make_job, make_trace, bottleneck, is_slower
):
    trace = make_trace(**{**LARGE, **CASES[bottleneck]})
    job = make_job(global_batch_size=64, compile="off", steps=10_000)
    plan, findings = solve_plan(job, parse_machine("2x H100"), trace)
    found = [finding for finding in findings if finding.slug == "slower-together"]
    assert bool(found) == is_slower == (plan.predicted.speedup.value < 1)
    for finding in found:
        rate = f"{plan.predicted.forecast.samples_per_s:,.0f} samples/s on 2"
        assert finding.severity == "warning" and rate in finding.why
        assert finding.fix == "--gpus 1, or compile=on"
