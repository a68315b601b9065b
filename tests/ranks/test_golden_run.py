"""A run directory of an earlier version: today's code still reads it and continues it."""

import json
import shutil
from pathlib import Path

import pytest

from phalanx.job import load_job
from phalanx.machine import Machine
from phalanx.planner.schema.plan import Plan
from phalanx.run.checkpoints import latest_good, list_checkpoints, verify_checkpoint
from phalanx.run.directory import RunDirectory
from tests.fixtures.event_lines import read_events
from tests.ranks.command import phalanx

GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("run-*"))


@pytest.fixture(params=GOLDEN, ids=lambda path: path.name)
def golden(request):
    return RunDirectory(request.param)


def test_every_file_is_still_read(golden):
    job = load_job(golden.job_file).job
    plan = Plan.from_json(json.loads(golden.plan_file.read_text()))
    machine = Machine.from_json(json.loads(golden.machine_file.read_text()))
    assert (job.recipe, plan.batch.total_steps.value, plan.devices.ranks.value) == ("digits", 46, 2)
    assert machine.accelerator == "cpu"


def test_events_are_still_read(golden):
    events = read_events(golden.events)
    assert [e.data["step"] for e in events if e.kind == "evaluate"] == [23, 46]
    assert {e.data["status"] for e in events if e.kind == "outcome"} == {"finished"}
    assert {e.kind for e in events} >= {"attempt", "start", "step", "evaluate", "checkpoint"}


def test_checkpoints_still_verify(golden):
    found = list_checkpoints(golden.checkpoints)
    assert [step for step, _ in found] == [46, 23]
    assert all(verify_checkpoint(path) is None for _, path in found)
    saved, problems = latest_good(golden.checkpoints)
    assert (saved.step, saved.state["consumed"], problems) == (46, 2874, [])


def test_it_still_continues(golden, tmp_path):
    shutil.copytree(golden.path, tmp_path / "runs" / "golden", symlinks=True)
    # The recipe's own source may have changed since; its job and its state must not matter.
    code, _, err = phalanx(
        *("train", "--resume", "runs/golden", "--epochs", "3", "--accept-changes"), cwd=tmp_path
    )
    assert code == 0, err
    assert "continues at step 46" in err
    steps = [
        e.data["step"] for e in read_events(tmp_path / "runs/golden/events") if e.kind == "step"
    ]
    assert steps[-1] == 69
