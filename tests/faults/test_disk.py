"""A disk that is full, read-only or fails: training goes on, what was saved before stands, and the
run ends with an error only where its last state is on no disk."""

import errno
import subprocess
from contextlib import contextmanager

import pytest

from phalanx.run.checkpoints import latest_good, list_checkpoints, verify_checkpoint
from tests.faults.apart import run_ranks
from tests.faults.report import record
from tests.fixtures.event_lines import read_events
from tests.ranks.runs import assert_same_bits, make_run, outcomes

CHANGES = {"steps": 10, "checkpoint": {"every": "2 steps"}, "evaluate": {"every": None}}
SHARDED = {**CHANGES, "strategy": "fsdp", "options": {"blocks": 2}}
FAIL = "tests.faults.planted:fail_in_save"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    run = make_run(tmp_path_factory.mktemp("undisturbed"), ranks=1, **CHANGES)
    assert run_ranks(run) == [0]
    return run


@contextmanager
def mounted(folder, options):
    """A file system in memory in place of a folder. Needs root, as CI is."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def findings(run):
    return [e.data["finding"] for e in read_events(run.events) if e.kind == "finding"]


def steps_done(run):
    return max(e.data["step"] for e in read_events(run.events) if e.kind == "step")


def all_verify(run):
    there = list_checkpoints(run.checkpoints)
    assert all(verify_checkpoint(path) is None for _, path in there)
    assert not [p.name for p in run.checkpoints.iterdir() if p.suffix == ".tmp"]
    return [step for step, _ in there]


@pytest.mark.parametrize(
    "is_room_known", [True, pytest.param(False, marks=pytest.mark.full)], ids=["asked", "found"]
)
def test_full_disk(tmp_path, undisturbed, is_room_known):
    run = make_run(tmp_path, ranks=1, **CHANGES)
    latest = undisturbed.checkpoints / "latest"
    one = sum(-(-f.stat().st_size // 4096) * 4096 for f in latest.iterdir())  # whole pages
    # Room for two checkpoints and half a one; what is asked for beforehand is a little more.
    spare = 2**20 if is_room_known else 0
    size = 2 * one + one // 2 + spare
    plant = None if is_room_known else "tests.faults.planted:lie_about_room"
    with mounted(run.checkpoints, f"size={size}"):
        assert run_ranks(run, plant=plant, **({} if is_room_known else {"step": 0})) == [1]
        assert steps_done(run) == 10, "training goes on"
        assert all_verify(run) == [4, 2]
        said = findings(run)
        assert [f["slug"] for f in said] == ["checkpoint-not-saved"], "once, not at every saving"
        assert "step 6" in said[0]["what"]
        assert "the disk is full" in said[0]["what"]
        if is_room_known:
            assert "are free" in said[0]["why"]
        (outcome,) = outcomes(run)
        assert (outcome["status"], outcome["exit_code"]) == ("failed", 1)
        assert outcome["findings"][0]["slug"] == "checkpoint-lost"
        assert "step 10" in outcome["reason"]
        assert "step 4 is the newest" in outcome["reason"]
        # Room is made, and the run goes on from what stands.
        subprocess.run(
            ["mount", "-o", "remount,size=64m", run.checkpoints], check=True, capture_output=True
        )
        assert run_ranks(run, attempt=1) == [0]
        assert_same_bits(run, undisturbed)
    record("disk full (tmpfs)", lost_steps=6, is_equal=True, note="after room was made")


def test_full_disk_that_has_room_again_before_the_end(tmp_path, undisturbed):
    run = make_run(tmp_path, ranks=1, **CHANGES)
    assert run_ranks(run, plant=FAIL, number=errno.ENOSPC, step=4, times=1) == [0]
    assert [f["slug"] for f in findings(run)] == ["checkpoint-not-saved"]
    assert all_verify(run) == [10, 8]
    assert_same_bits(run, undisturbed)


def test_read_only_folder(tmp_path):
    run = make_run(tmp_path, ranks=1, **CHANGES)
    with mounted(run.checkpoints, "ro"):
        assert run_ranks(run) == [1]
    assert steps_done(run) == 10
    assert "read-only" in findings(run)[0]["what"]
    (outcome,) = outcomes(run)
    assert outcome["findings"][0]["slug"] == "checkpoint-lost"
    assert "none is" in outcome["reason"]
    record("read-only folder", lost_steps=10, note="training ends, with checkpoint-lost")


def test_errors_that_pass_are_tried_again(tmp_path, undisturbed):
    run = make_run(tmp_path, ranks=1, **CHANGES)
    assert run_ranks(run, plant=FAIL, number=errno.EIO, step=6, times=2) == [0]
    assert "checkpoint-not-saved" not in [f["slug"] for f in findings(run)]
    assert all_verify(run) == [10, 8]
    assert_same_bits(run, undisturbed)
    record("EIO twice", lost_steps=0, is_equal=True)


@pytest.mark.full
def test_errors_that_stay(tmp_path):
    run = make_run(tmp_path, ranks=1, **{**CHANGES, "steps": 8})
    assert run_ranks(run, plant=FAIL, number=errno.EIO, step=6) == [1]
    assert steps_done(run) == 8
    assert latest_good(run.checkpoints)[0].step == 4
    assert findings(run)[0]["slug"] == "checkpoint-not-saved"
    record("EIO for good", lost_steps=4, note="training ends, with checkpoint-lost")


@pytest.mark.full
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("number", "times", "code"), [(errno.EIO, 1, 0), (errno.ENOSPC, 1, 0), (errno.ENOSPC, None, 1)]
)
def test_one_rank_of_two_cannot_write_its_part(tmp_path, rank, number, times, code):
    run = make_run(tmp_path, ranks=2, **SHARDED)
    codes = run_ranks(run, ranks=2, plant=FAIL, number=number, step=6, times=times, rank=rank)
    assert codes == [code, 0]  # the first rank says how the run ended
    assert steps_done(run) == 10
    assert all_verify(run) == ([4, 2] if code else [10, 8])
    is_said = number == errno.ENOSPC
    assert [f["slug"] for f in findings(run)] == ["checkpoint-not-saved"] * is_said


@pytest.mark.full
def test_events_wait_for_room_on_a_full_disk(tmp_path):
    from phalanx.run.event_kinds import Preparing
    from phalanx.run.events import EventWriter

    folder = tmp_path / "events"
    folder.mkdir()
    with mounted(folder, "size=8192"):
        writer = EventWriter(folder, "rank-0")
        (folder / "filler").write_bytes(b"x" * 4096)
        for step in range(100):
            writer.write(Preparing(what=f"{step} {'y' * 250}"))
        before = [int(event.data["what"].split()[0]) for event in read_events(folder)]
        assert len(before) < 100
        (folder / "filler").unlink()
        subprocess.run(["mount", "-o", "remount,size=64k", folder], check=True)
        writer.close()
        assert [int(event.data["what"].split()[0]) for event in read_events(folder)] == list(
            range(100)
        )
