"""NaN or Inf in the loss or the gradients of one rank: the step changes nothing on any rank, is
counted, and its samples are named."""

import math

import pytest
import torch

from phalanx.engine.data.order import ids_at
from tests.faults.apart import run_ranks
from tests.faults.report import record
from tests.fixtures.event_lines import read_events
from tests.ranks.runs import FIXTURES, averages, make_run, optimizer_state, outcomes, weights

RECIPE = f"{FIXTURES / 'recipes' / 'not_finite.py'}:NotFinite"
SEED, BATCH, SAMPLES = 7, 10, 50
STEPS = 6
# The last sample of the third step: on several ranks it is the last one's.
BAD = int(ids_at(SEED, 0, 2 * BATCH, 3 * BATCH, SAMPLES)[-1])
CHANGES = {
    "recipe": RECIPE,
    "steps": STEPS,
    "checkpoint": {"every": "1 steps", "keep": 99},
    "evaluate": {"every": None},
    "schedule": {"warmup": "2 steps"},
}


def train(tmp_path, ranks, *, kind, bad=(BAD,), batchnorm=False, **changes):
    options = {"bad": list(bad), "kind": kind, "batchnorm": batchnorm}
    changes = {**CHANGES, "options": options | changes.pop("options", {}), **changes}
    run = make_run(tmp_path, ranks=ranks, **changes)
    assert run_ranks(run, ranks=ranks) == [0] * ranks, outcomes(run)
    return run


def skipped(run):
    return [event.data for event in read_events(run.events) if event.kind == "skipped"]


def same(one, other):
    """Names of tensors that differ, counts of batches aside: BatchNorm has seen the step."""
    assert one.keys() == other.keys()
    return [
        name
        for name in one
        if not torch.equal(one[name], other[name]) and "num_batches" not in name
    ]


def check_third_step(run, *, ema=False):
    """Nothing has changed in it, and before and after it all has."""
    reads = [weights, optimizer_state] + [averages] * ema
    for read in reads:
        assert same(read(run, "checkpoint-2"), read(run, "checkpoint-3")) == []
        assert same(read(run, "checkpoint-3"), read(run, "checkpoint-4"))
        assert all(t.isfinite().all() for t in read(run).values())
    (event,) = skipped(run)
    assert (event["step"], event["in_a_row"], event["total"]) == (3, 1, 1)
    assert BAD in event["ids"]
    assert sorted(event["ids"]) == sorted(ids_at(SEED, 0, 20, 30, SAMPLES).tolist())
    found = [e.data["finding"] for e in read_events(run.events) if e.kind == "finding"]
    found = [f for f in found if f["slug"] != "checkpoint-waited"]  # a busy disk is no matter here
    assert [f["slug"] for f in found] == ["step-skipped"]
    rates = {e.data["step"]: e.data["lr"] for e in read_events(run.events) if e.kind == "step"}
    assert rates[3] != rates[4], "the schedule goes on"


@pytest.mark.parametrize("kind", ["loss", "gradient", "input"])
def test_a_bad_sample_on_one_rank_of_two(tmp_path, kind):
    with_ema = {"ema": {"decay": 0.9}}
    run = train(tmp_path / "two", 2, kind=kind, batchnorm=kind == "input", **with_ema)
    check_third_step(run, ema=True)
    if kind != "loss":
        return
    alone = train(tmp_path / "one", 1, kind=kind, **with_ema)
    check_third_step(alone, ema=True)
    for name, tensor in weights(alone).items():
        torch.testing.assert_close(weights(run)[name], tensor, rtol=1e-9, atol=1e-9)
    record("NaN loss on one rank of 2", lost_steps=1, is_equal=True, note="as on one rank")


@pytest.mark.full
@pytest.mark.parametrize("kind", ["loss", "gradient", "input"])
@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": {"lr": 0.01}},
        {"optimizer": {"name": "sgd", "lr": 0.01, "clip_norm": 1.0}},
        {"determinism": "exact"},
        {"options": {"late_weight": True}},
        {"micro_batch_size": 2},
        {"sync_batchnorm": True, "batchnorm": True},
    ],
    ids=["no clipping", "sgd", "exact", "late weight", "many slots", "sync batchnorm"],
)
def test_whatever_is_trained_how(tmp_path, kind, changes):
    check_third_step(train(tmp_path, 2, kind=kind, **changes))


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("gradient", {"optimizer": {"lr": 0.01}}),
        *(
            pytest.param(kind, changes, marks=pytest.mark.full)
            for kind in ("loss", "gradient", "input")
            for changes in (
                {"optimizer": {"lr": 0.01}},
                {"optimizer": {"lr": 0.01, "clip_norm": 1.0}, "ema": {"decay": 0.9}},
                {"optimizer": {"name": "sgd", "lr": 0.01}},
            )
            if (kind, len(changes)) != ("gradient", 1) or "name" in changes["optimizer"]
        ),
    ],
)
def test_shards(tmp_path, kind, changes):
    options = {"blocks": 2, "gain": True}
    run = train(tmp_path, 2, kind=kind, strategy="fsdp", options=options, **changes)
    check_third_step(run, ema="ema" in changes)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["loss", "gradient", "input"])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_deepspeed(tmp_path, kind, stage):
    run = train(
        tmp_path,
        2,
        kind=kind,
        strategy="deepspeed",
        deepspeed={"stage": stage},
        precision="fp32",
        options={"cast": True},
        ema={"decay": 0.9},
    )
    check_third_step(run, ema=True)


def test_a_run_of_nothing_but_bad_steps_stops(tmp_path):
    options = {"bad": list(range(SAMPLES)), "kind": "loss", "batchnorm": True}
    changes = {**CHANGES, "steps": 20, "stop_after_bad_steps": 4, "logging": {"every": 3}}
    run = make_run(tmp_path, ranks=1, **{**changes, "options": options, "checkpoint": {}})
    assert run_ranks(run) == [1]
    (outcome,) = outcomes(run)
    assert (outcome["status"], outcome["exit_code"]) == ("failed", 1)
    (finding,) = outcome["findings"]
    assert finding["slug"] == "steps-not-finite"
    assert "6 steps in a row" in finding["what"], "found where a step is logged"
    assert "stop_after_bad_steps = 4" in finding["why"]
    assert [event["in_a_row"] for event in skipped(run)] == [1, 2, 3, 4, 5, 6]
    assert all(math.isfinite(t.double().abs().sum()) for t in weights(run).values())


def test_bad_steps_that_are_not_in_a_row_do_not_stop_a_run(tmp_path):
    firsts = [int(ids_at(SEED, 0, at, at + 1, SAMPLES)[0]) for at in (0, 20, 40)]
    run = train(tmp_path, 1, kind="loss", bad=firsts, steps=5, stop_after_bad_steps=2)
    assert [event["step"] for event in skipped(run)] == [1, 3, 5]
    assert {outcome["status"] for outcome in outcomes(run)} == {"finished"}
