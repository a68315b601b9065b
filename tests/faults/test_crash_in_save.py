"""A rank that dies at any point of saving: never a mix of two checkpoints, the newest good one is
loaded, and the run ends with the bits of the undisturbed one."""

import pytest
import torch

from phalanx.run.checkpoints import latest_good, list_checkpoints
from tests.faults.apart import run_ranks
from tests.faults.planted import AFTER, POINTS
from tests.faults.report import record
from tests.fixtures.event_lines import read_events
from tests.ranks.runs import assert_same_bits, make_run, optimizer_state, weights

STEP = 6
CHANGES = {
    "options": {"batchnorm": True},
    "steps": 10,
    "ema": {"decay": 0.9},
    "checkpoint": {"every": "2 steps"},
    "evaluate": {"every": None},
}
FURTHER = ("before data", "before manifest", "after latest")
SHARDED = {**CHANGES, "strategy": "fsdp", "options": {"blocks": 2}}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Runs that nothing happens to, by the number of ranks; all checkpoints are there."""
    runs = {}

    def get(ranks):
        if ranks not in runs:
            changes = CHANGES if ranks == 1 else SHARDED
            changes = {**changes, "checkpoint": {"every": "2 steps", "keep": 99}}
            run = make_run(tmp_path_factory.mktemp("undisturbed"), ranks=ranks, **changes)
            assert run_ranks(run, ranks=ranks) == [0] * ranks
            runs[ranks] = run
        return runs[ranks]

    return get


def crash_and_go_on(run, undisturbed, *, ranks, point, rank=0):
    codes = run_ranks(
        run,
        ranks=ranks,
        plant="tests.faults.planted:crash_in_save",
        point=point,
        step=STEP,
        rank=rank,
    )
    assert codes[rank] == -9
    saved, problems = latest_good(run.checkpoints)
    assert problems == []
    assert saved.step == (STEP if point in AFTER else STEP - 2)
    name = f"checkpoint-{saved.step}"
    for read in (weights, optimizer_state):
        one, other = read(run, name), read(undisturbed, name)
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)
    assert run_ranks(run, ranks=ranks, attempt=1) == [0] * ranks
    starts = [e.data for e in read_events(run.events) if e.kind == "start" and e.attempt == 1]
    assert {start["step"] for start in starts} == {saved.step}
    assert_same_bits(run, undisturbed)
    assert list_checkpoints(run.checkpoints)[0][0] == 10
    names = {path.name for path in run.checkpoints.iterdir()}
    assert not {name for name in names if name.startswith(".")}, "left by the one that died"
    record(
        f"killed in save, {point}, {ranks} rank(s)",
        lost_steps=STEP - saved.step,
        is_equal=True,
    )


@pytest.mark.parametrize(
    "point",
    [pytest.param(point, marks=[pytest.mark.full] if point in FURTHER else []) for point in POINTS],
)
def test_death_at_each_point_of_saving(tmp_path, undisturbed, point):
    run = make_run(tmp_path, ranks=1, **CHANGES)
    crash_and_go_on(run, undisturbed(1), ranks=1, point=point)


@pytest.mark.full
@pytest.mark.parametrize("point", POINTS)
def test_death_while_training_waits_for_the_disk(tmp_path, undisturbed, point):
    changes = {**CHANGES, "checkpoint": {"every": "2 steps", "background": "off"}}
    crash_and_go_on(make_run(tmp_path, ranks=1, **changes), undisturbed(1), ranks=1, point=point)


@pytest.mark.full
@pytest.mark.parametrize(
    ("point", "rank"),
    [
        (point, rank)
        for point in POINTS
        for rank in (0, 1)
        if rank == 0 or point in ("before fsync", "mid-file")
    ],
)
def test_death_while_all_ranks_write_their_parts(tmp_path, undisturbed, point, rank):
    run = make_run(tmp_path, ranks=2, **SHARDED)
    crash_and_go_on(run, undisturbed(2), ranks=2, point=point, rank=rank)


def test_killed_between_the_two_renames_of_a_second_saving(tmp_path):
    from phalanx.run.checkpoints import tidy
    from tests.unit.run.test_checkpoints import save

    path = save(tmp_path, 5)
    path.rename(tmp_path / ".checkpoint-5.abc123.old")
    (tmp_path / ".checkpoint-5.1.def.tmp").mkdir()
    tidy(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint-5"]
    assert latest_good(tmp_path)[0].step == 5
