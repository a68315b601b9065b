"""Out of memory on one rank, through the real command: the plan is revised, the ranks start again,
and the run ends with the weights of the undisturbed run."""

import json

import pytest
import torch

from phalanx.errors import ExitCode
from tests.fixtures.event_lines import read_events
from tests.ranks.command import latest, phalanx
from tests.ranks.runs import FIXTURES, weights

RECIPE = f"{FIXTURES / 'recipes' / 'hungry.py'}:Hungry"

# 15 samples in slots of 7 and 8, then 3, 4, 4, 4, then 1 and seven of 2, then 1: on four ranks
# rank 1 always holds a largest one. 70 samples: the last step of an epoch has 10.
JOB = """
recipe: {recipe}
steps: 12
global_batch_size: 15
micro_batch_size: {micro}
precision: fp64
seed: 7
max_restarts: 0
optimizer: {{lr: 0.01, clip_norm: 1.0}}
logging: {{every: 1, tensorboard: false}}
ddp: {{bucket_mb: 0.002}}
checkpoint: {{every: 5 steps}}
evaluate: {{every: 4 steps}}
devices: {{cpu: {ranks}}}
strategy: {strategy}
options: {{hunger: "{hunger}", hungry_rank: {hungry_rank}, blocks: {blocks}}}
"""


def train(folder, *arguments, ranks, micro=8, hunger="", hungry_rank=1, strategy="auto", blocks=0):
    text = JOB.format(
        recipe=RECIPE,
        ranks=ranks,
        micro=micro,
        hunger=hunger,
        hungry_rank=hungry_rank,
        blocks=blocks,
        strategy=strategy,
    )
    (folder / "job.yaml").write_text(text)
    code, _, err = phalanx("train", "job.yaml", *arguments, cwd=folder, timeout_s=120)
    return code, err, latest(folder)


def events_of(run, kind):
    return [event.data for event in read_events(run.events) if event.kind == kind]


def failures_of(run):
    return [data for data in events_of(run, "outcome") if data.get("memory")]


def plan_of(run):
    return json.loads(run.plan_file.read_text())


def assert_same_run(run, other, tolerance=1e-10):
    """The same losses, the same samples at every step, the same weights."""
    for name in ("loss", "samples"):
        found, expected = ({e["step"]: e[name] for e in events_of(r, "step")} for r in (run, other))
        assert found == pytest.approx(expected, rel=0, abs=tolerance)
        assert len(found) == 12
    for name, value in weights(other).items():
        found = weights(run)[name].double()
        torch.testing.assert_close(found, value, rtol=0, atol=tolerance)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    code, err, run = train(tmp_path_factory.mktemp("undisturbed"), ranks=4)
    assert code == 0, err
    assert (plan_of(run)["revision"], plan_of(run)["batch"]["micro_batch_size"]["value"]) == (0, 8)
    return run


@pytest.mark.full
@pytest.mark.parametrize(
    ("hunger", "strategy"),
    [
        # Every phase at step 0 and at step 7, with both strategies.
        ("backward@0>4 optimizer@0>2 forward@7>1", "ddp"),
        ("forward@0>4 optimizer@7>2 backward@7>1", "fsdp"),
        ("forward@0>4 backward@7>2 optimizer@7>1", "ddp"),
        ("backward@0>4 optimizer@0>2 forward@7>1", "fsdp"),
    ],
)
def test_one_rank_of_four_runs_out_of_memory(tmp_path, undisturbed, hunger, strategy):
    code, err, run = train(tmp_path, ranks=4, hunger=hunger, strategy=strategy)
    assert code == 0, err
    steps = [int(meal.split("@")[1].split(">")[0]) for meal in hunger.split()]
    revisions = events_of(run, "revision")
    assert [revision["step"] for revision in revisions] == steps
    assert [revision["changes"]["micro_batch_size"] for revision in revisions] == [
        {"old": 8, "new": 4},
        {"old": 4, "new": 2},
        {"old": 2, "new": 1},
    ]
    assert [revision["changes"].get("accumulation") for revision in revisions] == [
        None,  # 2 slots on 4 ranks, then 4
        {"old": 1, "new": 2},
        {"old": 2, "new": 4},
    ]
    assert all("rank 1 ran out of memory" in revision["reason"] for revision in revisions)
    assert "plan revision 1: micro_batch_size 8 -> 4" in err
    assert [revision["revision"] for revision in revisions] == [1, 2, 3]
    assert plan_of(run)["revision"] == 3
    assert all((run.path / f"plan-{number}.json").is_file() for number in range(4))
    resumed = [e["step"] for e in events_of(run, "start") if e["rank"] == 0]
    expected = [0, *(0 if step == 0 else 5 for step in steps)]
    assert resumed == expected, "from the last checkpoint, or from the start"
    _assert_no_hang(run)
    assert_same_run(run, undisturbed)


@pytest.mark.full
def test_deepspeed_runs_out_of_memory(tmp_path, undisturbed):
    # ZeRO computes in fp32; nothing here is random, so fp64 differs by rounding alone.
    narrow = ("precision=fp32", "options.cast=true")
    hunger = "forward@0>4 optimizer@7>2"
    code, err, run = train(tmp_path, *narrow, ranks=2, hunger=hunger, strategy="deepspeed")
    assert code == 0, err
    changes = [revision["changes"]["micro_batch_size"] for revision in events_of(run, "revision")]
    assert changes == [{"old": 8, "new": 4}, {"old": 4, "new": 2}]
    _assert_no_hang(run)
    assert_same_run(run, undisturbed, tolerance=2e-5)


def _assert_no_hang(run):
    """Peers of a rank that ran out of memory are gone, and started again, within 60 s."""
    events = read_events(run.events)
    failed = [e.time_s for e in events if e.kind == "outcome" and e.data.get("memory")]
    again = [e.time_s for e in events if e.kind == "attempt"][1:]
    waits = [later - sooner for sooner, later in zip(failed, again, strict=True)]
    assert max(waits) < 60, waits


@pytest.mark.full
def test_settling_runs_out_of_memory_and_resume_keeps_the_cut(tmp_path, undisturbed):
    code, err, run = train(tmp_path, "--stop-after", "4", "steps", ranks=2, hunger="settle@0>4")
    assert code == ExitCode.STOPPED, err
    (failure,) = failures_of(run)
    assert (failure["phase"], failure["step"], failure["exit_code"]) == ("settle", None, 1)
    assert failure["findings"][0]["slug"] == "out-of-memory"
    assert failure["memory"]["tried_bytes"] == 20 * 2**20
    assert plan_of(run)["revision"] == 1
    code, _, err = phalanx("train", "--resume", cwd=tmp_path, timeout_s=60)
    assert code == 0, err
    assert (plan_of(run)["revision"], plan_of(run)["batch"]["micro_batch_size"]["value"]) == (2, 4)
    assert len(events_of(run, "revision")) == 1, "it ran out of memory again"
    assert_same_run(run, undisturbed)


def test_evaluation_runs_out_of_memory(tmp_path, undisturbed):
    code, err, run = train(tmp_path, ranks=1, hunger="evaluate@0>4", hungry_rank=0)
    assert code == 0, err
    (failure,) = failures_of(run)
    assert (failure["phase"], failure["step"]) == ("evaluate", 4)
    assert "DefaultCPUAllocator" in run.log_file(0).read_text()
    (revision,) = events_of(run, "revision")
    assert revision["changes"] == {"evaluate_batch_size": {"old": 8, "new": 4}}
    assert plan_of(run)["batch"]["micro_batch_size"]["value"] == 8
    assert_same_run(run, undisturbed)


def test_one_sample_that_does_not_fit_is_a_finding(tmp_path):
    hunger = "forward@0>0"
    code, err, run = train(tmp_path, ranks=1, micro=2, hunger=hunger, hungry_rank=0, blocks=2)
    assert code == ExitCode.FAILED
    assert "error[does-not-fit]: a micro-batch of 1 sample does not fit" in err
    assert "precision=fp32" in err
    smaller, recomputed = events_of(run, "revision")
    assert smaller["changes"]["micro_batch_size"] == {"old": 2, "new": 1}
    assert recomputed["changes"]["activation_checkpointing"] == {"old": False, "new": True}
    assert "it holds 1 sample; no bit changes" in recomputed["reason"]
    end = events_of(run, "outcome")[-1]
    assert [finding["slug"] for finding in end["findings"]] == ["does-not-fit"]
    assert not events_of(run, "finding"), "counted as a restart"
