"""`determinism: exact`: the same bits on 1, 2 and 4 ranks, each doing only its share."""

import pytest

from tests.fixtures.event_lines import read_events
from tests.ranks.runs import assert_same_bits, change_run, full, losses, make_run, train

# Dropout, augmentation, noise in the loss, two terms of unequal weight, BatchNorm, fp32.
CHANGES = {
    "determinism": "exact",
    "steps": 20,
    "precision": "fp32",
    "micro_batch_size": 2,
    "global_batch_size": 16,
    "options": {"batchnorm": True, "cast": True},
}


@pytest.fixture(scope="module")
def one_rank(pool, tmp_path_factory):
    log = tmp_path_factory.mktemp("log")
    run = make_run(tmp_path_factory.mktemp("one"), ranks=1, **CHANGES)
    return train(pool, run, ranks=1, env={"PARITY_LOG": str(log)}), forwards(log, 1)


def forwards(log, ranks):
    """Forward passes of each rank, without the one it settles with."""
    return [len((log / f"rank-{rank}").read_text().splitlines()) - 1 for rank in range(ranks)]


def evaluations(run):
    found = [event.data["metrics"] for event in read_events(run.events) if event.kind == "evaluate"]
    assert found
    return found


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_bits_do_not_depend_on_the_number_of_ranks(pool, tmp_path, one_rank, ranks):
    run, total = one_rank
    log = tmp_path / "log"
    log.mkdir()
    other = make_run(tmp_path, ranks=ranks, **CHANGES)
    train(pool, other, ranks=ranks, env={"PARITY_LOG": str(log)})
    assert losses(other) == losses(run)
    assert_same_bits(other, run)
    assert evaluations(other) == evaluations(run)
    counts = forwards(log, ranks)
    assert sum(counts) == sum(total)
    # 50 samples at 16: three full steps of 8 slots and one of a single slot in each epoch.
    assert max(counts) <= -(-sum(total) // ranks) + 5 * ranks


@pytest.mark.parametrize("ranks", [2, full(4)])
def test_resume_on_another_number_of_ranks_has_the_same_bits(pool, tmp_path, one_rank, ranks):
    run = make_run(tmp_path, ranks=ranks, **CHANGES, stop_after="7 steps")
    train(pool, run, ranks=ranks)
    run = change_run(run, ranks=1, stop_after="6 steps")
    train(pool, run, ranks=1, attempt=1)
    run = change_run(run, ranks=ranks, stop_after=None)
    train(pool, run, ranks=ranks, attempt=2)
    assert losses(run) == losses(one_rank[0])
    assert_same_bits(run, one_rank[0])


@pytest.mark.parametrize("options", [{"late_weight": True}, {"unused": True}])
def test_late_weights_and_unused_parameters(pool, tmp_path, options):
    changes = {**CHANGES, "steps": 6, "options": {"cast": True, **options}}
    runs = [
        train(pool, make_run(tmp_path / str(ranks), ranks=ranks, **changes), ranks=ranks)
        for ranks in (1, 3)
    ]
    assert losses(runs[0]) == losses(runs[1])
    assert_same_bits(*runs)
