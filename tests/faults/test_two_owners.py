"""A command dies while its ranks are inside a step: until they are gone the run is theirs, and what
an attempt that is over leaves behind changes nothing of the next one."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from phalanx.errors import ExitCode
from phalanx.run.attempt import claim_attempt, read_attempt
from phalanx.run.checkpoints import latest_good, list_checkpoints
from phalanx.run.lock import is_held
from tests.fixtures.event_lines import make_event, read_events
from tests.ranks.command import finish, is_alive, latest, phalanx, rank_pids, start
from tests.ranks.runs import FIXTURES

# In one attempt, step 8 takes until the test says so.
RECIPE = f"""
import os, sys, time
from pathlib import Path
sys.path.insert(0, {str(FIXTURES / "recipes")!r})
from parity import Parity

class Long(Parity):
    steps = 0
    def loss(self, model, batch, sample_keys):
        if model.training and "RANK" in os.environ:
            Long.steps += 1
            if Long.steps == 8 and os.environ["PHALANX_ATTEMPT"] == os.environ.get("LONG", "0"):
                Path("inside").touch()
                while not Path("go").exists():
                    time.sleep(0.05)
        return super().loss(model, batch, sample_keys)
"""

JOB = """
recipe: long.py:Long
steps: 40
global_batch_size: 3
micro_batch_size: 3
precision: fp64
seed: 3
logging: {every: 1, tensorboard: false}
checkpoint: {every: 5 steps, keep: 3}
evaluate: {every: null}
devices: {cpu: 1}
"""


def wait_until(there, what, timeout_s=180):
    deadline = time.monotonic() + timeout_s
    while not there():
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s} s"
        time.sleep(0.05)


def write_job(folder):
    (folder / "long.py").write_text(RECIPE)
    (folder / "job.yaml").write_text(JOB)


@pytest.fixture
def inside(tmp_path):
    """A command whose only rank is inside a long step: (command, run, pid of the rank)."""
    write_job(tmp_path)
    process = start("train", "job.yaml", cwd=tmp_path)
    wait_until((tmp_path / "inside").exists, "the long step")
    run = latest(tmp_path)
    rank = rank_pids(run)[0]
    yield process, run, rank
    (tmp_path / "go").touch()
    wait_until(lambda: not is_alive(rank), "the end of the rank")


def resume(tmp_path, name="said"):
    """Start `--resume`; what it says goes to a file that can be read meanwhile."""
    said = tmp_path / name
    with said.open("w") as file:
        command = [sys.executable, "-m", "phalanx", "train", "--resume", "latest"]
        return subprocess.Popen(command, cwd=tmp_path, stdout=file, stderr=file), said


def is_waiting(process, said):
    """Whether it says that it waits, or has not waited at all."""
    return "run-waiting" in said.read_text() or process.poll() is not None


def steps_of(run, attempt):
    found = [e for e in read_events(run.events) if e.kind == "step" and e.attempt == attempt]
    return [event.data["step"] for event in found]


def assert_one_after_the_other(run):
    """Two ranks 0 never wrote at the same time, and the last one has finished the run."""
    lines = (run.events / "rank-0.jsonl").read_text().splitlines()
    attempts = [json.loads(line)["attempt"] for line in lines]
    assert attempts == sorted(attempts), "an attempt that was over has written"
    assert {json.loads(line)["run"] for line in lines} == {read_attempt(run.path).run}
    assert [step for step, _ in list_checkpoints(run.checkpoints)] == [40, 35, 30]
    assert latest_good(run.checkpoints)[0].step == 40
    assert (run.checkpoints / "latest").resolve().name == "checkpoint-40"
    assert not is_held(run)


@pytest.mark.full
def test_a_resumed_run_waits_for_the_rank_that_its_killed_command_left(tmp_path, inside):
    process, run, rank = inside
    process.kill()
    process.wait()
    assert is_alive(rank)
    assert is_held(run), "a rank can still write into it"
    second, said = resume(tmp_path)
    wait_until(lambda: is_waiting(second, said), "a word about the wait")
    assert str(rank) in said.read_text()
    assert "rank 0" in said.read_text()
    third, refused = resume(tmp_path, "refused")
    assert third.wait(90) == ExitCode.USAGE, refused.read_text()
    assert "run-busy" in refused.read_text()
    assert str(second.pid) in refused.read_text()
    (tmp_path / "go").touch()
    assert second.wait(120) == 0, said.read_text()
    assert not is_alive(rank)
    assert "finished" in said.read_text()
    assert "40 steps in all" in said.read_text()
    # The orphan has ended in order: its step is saved and not trained again.
    assert steps_of(run, 0) + steps_of(run, 1) == list(range(1, 41))
    assert_one_after_the_other(run)


def test_a_rank_outlives_its_launcher_and_its_command(tmp_path, inside):
    process, run, rank = inside
    os.kill(psutil.Process(rank).ppid(), signal.SIGKILL)
    code, _, err = finish(process)
    assert code == ExitCode.LAUNCH, err
    assert is_alive(rank)
    assert is_held(run)
    second, said = resume(tmp_path)
    wait_until(lambda: is_waiting(second, said), "a word about the wait")
    (tmp_path / "go").touch()
    assert second.wait(120) == 0, said.read_text()
    assert_one_after_the_other(run)


@pytest.mark.full
def test_stop_ends_what_a_killed_command_left(tmp_path, inside):
    process, run, rank = inside
    process.kill()
    process.wait()
    code, out, err = phalanx("stop", "--now", cwd=tmp_path)
    assert not is_alive(rank), (code, out, err)
    assert not is_held(run)


def test_a_rank_of_an_attempt_that_is_over_writes_nothing(tmp_path, inside):
    """No lock helps where a file system of several hosts keeps none: the files say whose it is."""
    process, run, rank = inside
    process.kill()
    process.wait()
    saved = lambda: any(e.kind == "checkpoint" for e in read_events(run.events))  # noqa: E731
    wait_until(saved, "the checkpoint of step 5")
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    claimed = claim_attempt(run.path, 1)
    (tmp_path / "go").touch()
    wait_until(lambda: not is_alive(rank), "the end of the rank")
    after = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    changed = {
        path.name for path in before.keys() | after.keys() if before.get(path) != after.get(path)
    }
    curves = {name for name in changed if "sinks.json" in name or name == "results.csv"}
    assert changed - curves == {"attempt.json"}
    assert read_attempt(run.path) == claimed


@pytest.mark.full
@pytest.mark.parametrize("has_run", [True, False])
def test_an_outcome_of_another_attempt_is_nobodys(tmp_path, has_run):
    write_job(tmp_path)
    env = {"LONG": "1"}
    assert phalanx("train", "job.yaml", "--steps", "5", cwd=tmp_path, env=env)[0] == 0
    process = start("train", "--resume", "latest", "--steps", "40", cwd=tmp_path, env=env)
    wait_until((tmp_path / "inside").exists, "the long step")
    run = latest(tmp_path)
    first = next(e for e in read_events(run.events) if e.kind == "outcome" and e.attempt == 0)
    told = {"status": "stopped", "step": 8, "reason": "stopped", "findings": [], "exit_code": 75}
    run_id = first.run if has_run else None
    late = make_event("outcome", first.time_s, "rank-0", first.attempt, told, run_id)
    with (run.events / "rank-0.jsonl").open("a") as file:
        file.write(late.to_line())
    (tmp_path / "go").touch()
    code, out, err = finish(process)
    assert code == 0, (out, err)
    assert "finished" in out
    assert "40 steps in all" in out


def test_a_killed_launch_of_a_script_leaves_nothing_that_holds_its_run(tmp_path):
    script = "import os, time\nopen(f'pid-{os.getpid()}', 'w')\ntime.sleep(600)\n"
    (tmp_path / "script.py").write_text(script)
    process = start("launch", "--cpu", "1", "script.py", cwd=tmp_path)
    wait_until(lambda: list(tmp_path.glob("pid-*")), "the script")
    run = latest(tmp_path)
    assert is_held(run)
    (started,) = tmp_path.glob("pid-*")
    process.kill()
    process.wait()
    wait_until(lambda: not is_alive(int(started.name[4:])), "the end of the script")
    assert not is_held(run)
