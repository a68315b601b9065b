"""A stopped and resumed run equals the unbroken one bit for bit, on the same number of ranks; on
another number it sees the same samples in the same global batches."""

from collections import Counter

import pytest

from phalanx.engine.data.order import ids_at
from phalanx.planner.schema.micro_batches import BatchPlan, deal
from tests.fixtures.event_lines import read_events
from tests.ranks.runs import (
    assert_same_bits,
    change_run,
    full,
    losses,
    make_run,
    train,
    unbroken_runs,
)

STEPS = 12
# BatchNorm takes part; 50 samples at 10 are 5 steps an epoch.
CHANGES = {"options": {"batchnorm": True}, "steps": STEPS}
WITH_WORKERS = (2, 5, 9)  # stops before which samples come from a loader process


@pytest.fixture(scope="module")
def unbroken(pool, tmp_path_factory):
    return unbroken_runs(pool, tmp_path_factory, **CHANGES)


QUICK = {1: (), 2: (5,), 4: ()}


@pytest.mark.parametrize(
    ("ranks", "stop"),
    [
        # In `make test` at an epoch's end; in full after every step.
        pytest.param(ranks, stop, marks=[] if stop in QUICK[ranks] else pytest.mark.full)
        for ranks in (1, 2, 4)
        for stop in range(1, STEPS)
    ],
)
def test_resume_at_any_step_equals_the_unbroken_run(pool, tmp_path, unbroken, ranks, stop):
    # The unbroken run has no loader processes: who fetches a sample must not matter either.
    loader = {"workers": 1 if stop in WITH_WORKERS else 0}
    run = make_run(tmp_path, ranks=ranks, **CHANGES, loader=loader, stop_after=f"{stop} steps")
    train(pool, run, ranks=ranks)
    assert max(losses(run)) == stop
    run = change_run(run, stop_after=None)
    train(pool, run, ranks=ranks, attempt=1)
    assert losses(run) == losses(unbroken(ranks))
    assert_same_bits(run, unbroken(ranks))


@pytest.mark.parametrize("ranks", [full(1), 2, full(4)])
def test_two_stops_within_one_epoch_equal_the_unbroken_run(pool, tmp_path, unbroken, ranks):
    run = make_run(tmp_path, ranks=ranks, **CHANGES, stop_after="6 steps")
    train(pool, run, ranks=ranks)
    run = change_run(run, stop_after="2 steps")  # steps 6 to 8 of an epoch of steps 5 to 10
    train(pool, run, ranks=ranks, attempt=1)
    run = change_run(run, stop_after=None)
    train(pool, run, ranks=ranks, attempt=2)
    assert losses(run) == losses(unbroken(ranks))
    assert_same_bits(run, unbroken(ranks))


def test_one_two_one_ranks_see_the_same_samples(pool, tmp_path):
    log = tmp_path / "log"
    seen = []
    run = None
    for session, (ranks, limit) in enumerate([(1, "4 steps"), (2, "5 steps"), (1, None)]):
        if run is None:
            run = make_run(tmp_path / "runs", ranks=ranks, stop_after=limit)
        else:
            run = change_run(run, ranks=ranks, stop_after=limit)
        log.mkdir()
        train(pool, run, ranks=ranks, env={"PARITY_LOG": str(log)}, attempt=session)
        first, last = {0: (0, 4), 1: (4, 9), 2: (9, 12)}[session]
        seen += steps_from_log(log, ranks, range(first, last))
        for path in log.iterdir():
            path.unlink()
        log.rmdir()
    plan = BatchPlan(50, 10, 3)
    for step, ids in enumerate(seen):
        start = step % 5 * 10
        assert Counter(ids) == Counter(ids_at(7, step // 5, start, start + 10, 50).tolist())
    for epoch in range(2):
        together = [i for ids in seen[5 * epoch : 5 * epoch + 5] for i in ids]
        assert sorted(together) == list(range(50)), "a sample was lost or seen twice"
    assert plan.steps_per_epoch == 5


def steps_from_log(log, ranks, steps):
    """The ids of each step, put together from what every rank's forwards wrote down."""
    plan = BatchPlan(50, 10, 3)
    discarded = 3 if ranks > 1 else 0  # DDP settles with three passes that train nothing
    by_rank = []
    for rank in range(ranks):
        lines = (log / f"rank-{rank}").read_text().splitlines()[discarded:]
        by_rank.append(iter([[int(i) for i in line.split()] for line in lines]))
    result = []
    for step in steps:
        ids = []
        for rank in range(ranks):
            first, last = deal(len(plan.slots_of(step)), rank, ranks)
            for _ in range(last - first):
                ids += next(by_rank[rank])
        result.append(ids)
    assert all(next(lines, None) is None for lines in by_rank), "forwards that belong to no step"
    return result


@pytest.mark.parametrize("ranks", [1, full(2), 4])
def test_evaluation_is_exact_on_any_number_of_ranks(pool, tmp_path, ranks):
    run = train(pool, make_run(tmp_path, ranks=ranks, steps=1), ranks=ranks)
    (event,) = [e for e in read_events(run.events) if e.kind == "evaluate"]
    assert event.data["samples"] == 13
    assert event.data["metrics"]["samples"] == 13
    assert event.data["metrics"]["ids"] == sum(range(13))


def test_evaluation_of_fewer_samples_than_ranks(pool, tmp_path):
    changes = {"steps": 1, "options": {"test_samples": 2}, "evaluate": {"batch_size": 1}}
    run = train(pool, make_run(tmp_path, ranks=4, **changes), ranks=4)
    (event,) = [e for e in read_events(run.events) if e.kind == "evaluate"]
    assert event.data["metrics"]["ids"] == 1
