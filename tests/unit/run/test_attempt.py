"""Who may write into a run: the newest attempt, and nobody who is left of an older one."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict, replace

import pytest

from phalanx.errors import UserError
from phalanx.run import lock
from phalanx.run.attempt import Attempt, RunTakenError, claim_attempt, read_attempt
from phalanx.run.checkpoints import latest_good, list_checkpoints, new_checkpoint, publish
from phalanx.run.directory import RunDirectory
from phalanx.run.event_kinds import AttemptStarted, Outcome, StopAsked
from phalanx.run.events import EventReader, EventWriter, read_events
from phalanx.run.holder import this_process
from phalanx.run.lock import hold_rank, is_held, lock_run, read_holder, read_ranks

RANK = """
import os, sys, time
from pathlib import Path
from phalanx.run.directory import RunDirectory
from phalanx.run.lock import hold_rank
hold_rank(RunDirectory(Path(sys.argv[1])), attempt=3, rank=0)
{more}
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def run(tmp_path):
    made = RunDirectory(tmp_path / "run")
    for folder in (made.events, made.checkpoints, made.logs):
        folder.mkdir(parents=True)
    return made


@pytest.fixture
def orphan(run):
    """A process that holds the run as a rank, and whose command is gone."""
    with subprocess.Popen(
        [sys.executable, "-c", RANK.format(more=""), str(run.path)],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def save(run, step, attempt=None, content=b"weights"):
    with new_checkpoint(run.checkpoints, step, attempt) as temporary:
        (temporary / "model.safetensors").write_bytes(content)
        (temporary / "state.json").write_text(json.dumps({"step": step}))


def steps(run):
    return [step for step, _ in list_checkpoints(run.checkpoints)]


def link(run, name):
    return (run.checkpoints / name).resolve().name


@pytest.mark.parametrize("keep", [1, 3])
def test_publishing_never_removes_a_newer_one_that_verifies(run, keep):
    for step in (100, 150, 200):
        save(run, step)
        publish(run.checkpoints, step, is_best=step == 150, keep=3)
    save(run, 8)
    found = publish(run.checkpoints, 8, is_best=False, keep=keep)
    assert found.slug == "checkpoint-behind"
    assert "checkpoint-200" in found.what
    assert steps(run) == [200, 150, 100, 8]
    assert (link(run, "latest"), link(run, "best")) == ("checkpoint-200", "checkpoint-150")
    assert latest_good(run.checkpoints)[0].step == 200


def test_an_older_attempt_publishes_and_removes_nothing(run):
    """Not even older ones: those that the newer attempt keeps as its best are not known to it."""
    newer, older = Attempt("a", 4), Attempt("a", 3)
    for step in (40, 50, 100, 200):
        save(run, step, newer)
        publish(run.checkpoints, step, is_best=step == 50, keep=2, best_steps={40, 50})
    assert steps(run) == [200, 100, 50, 40]
    save(run, 160, older)
    found = publish(run.checkpoints, 160, is_best=True, keep=1, best_steps={160})
    assert found.slug == "checkpoint-outdated"
    assert "attempt 4" in found.why and "attempt 3" in found.why
    assert steps(run) == [200, 160, 100, 50, 40]
    assert (link(run, "latest"), link(run, "best")) == ("checkpoint-200", "checkpoint-50")
    save(run, 250, newer)
    assert publish(run.checkpoints, 250, is_best=False, keep=2, best_steps={40, 50}) is None
    assert steps(run) == [250, 200, 50, 40], "what the older one left goes with the rest"


def test_an_older_attempt_does_not_write_over_the_same_step(run):
    save(run, 8, Attempt("a", 4), b"newer")
    with pytest.raises(RunTakenError):
        save(run, 8, Attempt("a", 3), b"older")
    assert (run.checkpoints / "checkpoint-8" / "model.safetensors").read_bytes() == b"newer"
    save(run, 8, Attempt("a", 5), b"newest")
    assert (run.checkpoints / "checkpoint-8" / "model.safetensors").read_bytes() == b"newest"


def test_a_run_that_is_taken_while_a_checkpoint_is_written_gets_none(run):
    mine = claim_attempt(run.path, 0)
    with pytest.raises(RunTakenError), new_checkpoint(run.checkpoints, 8, mine) as temporary:
        (temporary / "state.json").write_text(json.dumps({"step": 8}))
        claim_attempt(run.path, 1)
    assert list(run.checkpoints.iterdir()) == []


def test_a_writer_of_an_older_attempt_writes_nothing(run):
    old = EventWriter(run.events, "rank-0", attempt=claim_attempt(run.path, 0).number)
    old.write(StopAsked(reason="first"))
    new = EventWriter(run.events, "rank-0", attempt=claim_attempt(run.path, 1).number)
    with pytest.raises(RunTakenError) as caught:
        old.write(StopAsked(reason="lost"))
    assert "attempt 1" in caught.value.findings[0].why
    old.close()
    new.write(StopAsked(reason="second"))
    found = read_events(run.events)
    assert [(e.body.reason, e.attempt) for e in found] == [("first", 0), ("second", 1)]
    assert {event.run for event in found} == {read_attempt(run.path).run}
    other = EventWriter(run.events, "evaluate")  # has no part in any attempt
    other.write(StopAsked(reason="third"))


def test_a_run_that_was_replaced_by_another_of_its_name_is_not_written_into(run):
    mine = claim_attempt(run.path, 7)
    events = EventWriter(run.events, "rank-0", attempt=7)
    shutil.rmtree(run.path)
    run.events.mkdir(parents=True)
    run.checkpoints.mkdir()
    claim_attempt(run.path, 0)
    with pytest.raises(RunTakenError):
        events.write(StopAsked(reason="lost"))
    with pytest.raises(RunTakenError):
        save(run, 8, mine)
    assert steps(run) == []


def test_events_of_another_run_or_of_an_attempt_that_is_over_are_not_read(run):
    claimed = claim_attempt(run.path, 1)
    writer = EventWriter(run.events, "rank-0", attempt=1)
    reader = EventReader(run.events)
    first = writer.write(StopAsked(reason="good"))
    late = replace(first, attempt=0, body=StopAsked(reason="late"))
    strange = replace(first, run="another", body=StopAsked(reason="strange"))
    old = replace(first, attempt=0, run=None, body=StopAsked(reason="old"))
    with (run.events / "rank-0.jsonl").open("a") as file:
        file.writelines(event.to_line() for event in (late, strange, old))
    writer.write(StopAsked(reason="better"))
    assert [e.body.reason for e in reader.read()] == ["good", "old", "better"]
    assert claimed.run == first.run


def test_a_rank_holds_its_run_and_its_children_do_not(run):
    # A loader process is forked, a simulator is a new program. A forked process lets go in its
    # first instructions, and says here when it has run them.
    more = """
import subprocess
begun, begins = os.pipe()
if os.fork() == 0:
    os.write(begins, b"1")
    time.sleep(600)
os.read(begun, 1)
subprocess.Popen(["sleep", "600"])
"""
    with subprocess.Popen(
        [sys.executable, "-c", RANK.format(more=more), str(run.path)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout.readline() == "held\n"
            assert is_held(run)
            (holder,) = read_ranks(run)
            assert (holder.pid, holder.attempt, holder.rank) == (process.pid, 3, 0)
            process.kill()
            process.wait()
            assert not is_held(run)
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_a_rank_that_hangs_alone_is_ended(run, orphan, monkeypatch):
    monkeypatch.setattr(lock, "_ALONE_S", 0.0)
    monkeypatch.setattr(lock, "_WATCHED_S", 0.0)
    told = []
    with lock_run(run, tell=told.append):
        assert orphan.wait() == -signal.SIGKILL
        assert not read_ranks(run)
    (finding,) = told
    assert finding.slug == "run-waiting"
    for word in ("rank 0 of attempt 3", str(orphan.pid), this_process().host, "since"):
        assert word in finding.why
    assert not (run.path / ".locks").exists()


@pytest.mark.parametrize("change", [{"born": "another"}, {"host": "elsewhere"}])
def test_a_process_that_cannot_be_proven_to_be_the_runs_is_not_ended(
    run, orphan, monkeypatch, change
):
    for limit in ("_ALONE_S", "_WATCHED_S", "_FAR_S", "_END_S"):
        monkeypatch.setattr(lock, limit, 0.0)
    (path,) = (run.path / ".locks").iterdir()
    (holder,) = read_ranks(run)
    path.write_text(json.dumps(asdict(replace(holder, **change))))
    with pytest.raises(UserError) as caught, lock_run(run):
        raise AssertionError("it is held")
    (finding,) = caught.value.findings
    assert finding.slug == "run-busy"
    assert "cannot be proven" in finding.why
    assert orphan.poll() is None
    assert not lock._is_locked(run.path / ".lock")


def test_the_lock_of_a_dead_process_whose_number_was_given_away_is_free(run):
    with subprocess.Popen(["sleep", "600"]) as other:
        stale = replace(this_process(), pid=other.pid)  # another start
        (run.path / ".lock").write_text(json.dumps(asdict(stale)))
        (run.path / ".locks").mkdir()
        (run.path / ".locks" / "0-0").write_text(json.dumps(asdict(replace(stale, rank=0))))
        assert not is_held(run)
        with lock_run(run, command=["phalanx", "train"]):
            holder = read_holder(run)
            assert (holder.pid, holder.command) == (os.getpid(), "phalanx train")
            with pytest.raises(UserError) as caught, lock_run(run):
                pass
        assert "`phalanx train`" in caught.value.findings[0].why
        assert other.poll() is None
        other.kill()


def test_a_command_that_is_stopping_is_waited_for(run):
    code = (
        "import sys; from pathlib import Path\n"
        "from phalanx.run.directory import RunDirectory\nfrom phalanx.run.lock import lock_run\n"
        "with lock_run(RunDirectory(Path(sys.argv[1]))):\n"
        "    print('held', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(run.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout.readline() == "held\n"
        claim_attempt(run.path, 0)
        events = EventWriter(run.events, "supervisor", attempt=0)
        events.write(AttemptStarted(ranks=1))
        with pytest.raises(UserError), lock_run(run):
            pass
        events.write(StopAsked(reason="asked"))
        told = []

        def tell(finding):
            told.append(finding)
            holder.stdin.close()  # it ends while it is waited for

        with lock_run(run, tell=tell):
            assert holder.wait() == 0
        assert [finding.slug for finding in told] == ["run-waiting"]
        assert str(holder.pid) in told[0].why


@pytest.mark.parametrize("end", ["outcome", None])
def test_ranks_that_may_be_left_on_another_host_are_named(run, end):
    claim_attempt(run.path, 0, ["far", this_process().host])
    events = EventWriter(run.events, "supervisor", attempt=0)
    events.write(AttemptStarted(ranks=2))
    if end is not None:
        events.write(
            Outcome(status="finished", step=1, reason="finished", findings=[], exit_code=0)
        )
    told = []
    with lock_run(run, tell=told.append):
        pass
    assert [finding.slug for finding in told] == ([] if end else ["owner-unproven"])
    assert end or "far" in told[0].what


def test_a_rank_of_an_older_attempt_does_not_start(run):
    claim_attempt(run.path, 4)
    with pytest.raises(RunTakenError):
        hold_rank(run, attempt=3, rank=0)
    lock._let_go_in_child()  # as its end would
