"""A launched script as a supervisor runs it."""

import signal
from types import SimpleNamespace

import pytest

from phalanx.run.directory import RunDirectory
from phalanx.run.event_kinds import Outcome, RankStarted, Step
from phalanx.run.events import EventWriter, read_events
from phalanx.run.launching import RankDeath
from phalanx.scripts.workload import ScriptWorkload
from phalanx.supervise.outcomes import stopped
from phalanx.supervise.place import RankStart
from phalanx.supervise.workload import Again, AttemptEnd, Judgement


@pytest.fixture
def run(tmp_path):
    return RunDirectory(tmp_path)


@pytest.fixture
def workload(run):
    request = SimpleNamespace(tensorboard=False, results="", max_restarts=3)
    prepared = SimpleNamespace(
        request=request, world=2, backend="gloo", resume_words=[], gpus=[], is_cpu=True
    )
    made = ScriptWorkload(run, prepared, on_line=lambda rank, text, is_update: None)
    made.begin(0, EventWriter(run.events, "supervisor", attempt=0))
    return made


def ranks(**changes):
    return SimpleNamespace(**{"starts": None, "is_running": True, "pids": [], **changes})


def test_a_script_that_was_asked_to_stop_while_its_end_was_explained_is_not_started_again(workload):
    died = ranks(deaths=[RankDeath(0, 1)], error=None, is_running=False)
    judged = Judgement(stopped("rank 0 left with 1", 1), can_restart=True)
    assert isinstance(workload.go_on(AttemptEnd(died, [], None), judged), Again)
    asked = AttemptEnd(died, [signal.SIGTERM], None)
    assert isinstance(workload.go_on(asked, judged), Outcome)


def test_lines_before_all_nodes_have_started_are_read_after_the_start_is_told(workload, run):
    workload._hear_line(0, "step 1 loss 0.5", False)
    workload.look(ranks())
    assert list(read_events(run.events)) == []
    workload.look(ranks(starts=[RankStart(1, "cpu"), RankStart(2, "cpu")]))
    workload._hear_line(0, "step 2 loss 0.4", False)
    kinds = [type(event.body) for event in read_events(run.events)]
    assert kinds[:3] == [RankStarted, RankStarted, Step]
    assert kinds.count(Step) == 2


def test_lines_of_an_attempt_that_never_started_everywhere_count_as_progress(workload):
    workload._hear_line(0, "step 1 loss 0.5", False)
    workload.look(ranks(is_running=False))
    assert workload._read.has_progress
