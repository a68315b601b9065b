"""The whole way of a run through the real command: start, stop, kill, restart, resume."""

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from phalanx.errors import ExitCode
from tests.fixtures.event_lines import read_events
from tests.ranks.command import (
    finish,
    is_alive,
    kill,
    latest,
    phalanx,
    rank_pids,
    start,
    wait_for_step,
)
from tests.ranks.runs import RECIPE, assert_same_bits, losses, outcomes

# Waits between its steps while a file is there, so that it is caught in the middle.
HELD = (
    Path(RECIPE.rpartition(":")[0])
    .read_text()
    .replace("import os\n", "import os\nimport time\n", 1)
    .replace(
        "        out = model(",
        "        if 'RANK' in os.environ and Path('held').exists():\n"
        "            time.sleep(0.05)\n"
        "        out = model(",
    )
)
STEPS = 120
JOB = f"""
recipe: held.py:Parity
steps: {STEPS}
global_batch_size: 10
precision: fp64
micro_batch_size: 3
seed: 3
logging: {{every: 5, tensorboard: false}}
checkpoint: {{every: 20 steps}}
evaluate: {{every: 50 steps}}
devices: {{cpu: 2}}
options: {{width: 64}}
"""


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken")
    write_job(folder)
    temporary = tmp_path_factory.mktemp("temporary")
    code, _, err = phalanx("train", "job.yaml", cwd=folder, env={"TMPDIR": str(temporary)})
    assert code == 0, err
    left = {path.name for path in temporary.iterdir()}
    assert all(name.startswith("torchinductor_") for name in left), left  # torch's own cache
    return latest(folder)


def write_job(folder, *, is_held=False):
    (folder / "held.py").write_text(HELD)
    (folder / "job.yaml").write_text(JOB)
    if is_held:
        (folder / "held").touch()


@pytest.mark.full
def test_sigterm_saves_exits_75_and_resume_equals_the_unbroken_run(tmp_path, unbroken):
    write_job(tmp_path, is_held=True)
    process = start("train", "job.yaml", cwd=tmp_path)
    run = wait_for_step(process, tmp_path, 30)
    process.send_signal(signal.SIGTERM)
    code, out, err = finish(process)
    assert code == ExitCode.STOPPED, err
    assert "--resume" in out
    stopped_at = outcomes(run)[-1]["step"]
    assert stopped_at < STEPS, "the run was over before the signal came"
    assert (run.checkpoints / f"checkpoint-{stopped_at}").is_dir()
    (tmp_path / "held").unlink()
    code, _, err = phalanx("train", "--resume", cwd=tmp_path)
    assert code == 0, err
    assert f"continues at step {stopped_at}" in err
    assert losses(run) == losses(unbroken)
    assert_same_bits(run, unbroken)


@pytest.mark.full
def test_second_interrupt_exits_130_at_once(tmp_path):
    write_job(tmp_path)
    process = start("train", "job.yaml", "--steps", "1000000", cwd=tmp_path)
    run = wait_for_step(process, tmp_path, 5)
    pids = rank_pids(run)
    for pid in pids.values():
        os.kill(pid, signal.SIGSTOP)  # ranks that cannot finish their step
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    code, _, _ = finish(process, timeout_s=20)
    assert code == ExitCode.INTERRUPTED
    assert not any(is_alive(pid) for pid in pids.values())


def test_killed_rank_restarts_the_group_and_equals_the_unbroken_run(tmp_path, unbroken):
    write_job(tmp_path, is_held=True)
    process = start("train", "job.yaml", cwd=tmp_path)
    run = wait_for_step(process, tmp_path, 30)
    kill(rank_pids(run)[1])
    (tmp_path / "held").unlink()
    code, _, err = finish(process)
    assert code == 0, err
    assert "rank 1 was killed by SIGKILL" in err
    assert max(event.attempt for event in read_events(run.events)) == 1
    assert_same_bits(run, unbroken)


@pytest.mark.full
def test_restarts_are_bounded(tmp_path):
    write_job(tmp_path, is_held=True)
    process = start("train", "job.yaml", "max_restarts=0", cwd=tmp_path)
    run = wait_for_step(process, tmp_path, 20)
    kill(rank_pids(run)[0])
    code, _, err = finish(process)
    assert code == ExitCode.FAILED
    assert "error[rank-killed]: rank 0 was killed by SIGKILL" in err


@pytest.mark.full
def test_killed_supervisor_leaves_no_ranks(tmp_path):
    write_job(tmp_path)
    process = start("train", "job.yaml", "--steps", "1000000", cwd=tmp_path)
    pids = rank_pids(wait_for_step(process, tmp_path, 5))
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 20
    while any(is_alive(pid) for pid in pids.values()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(is_alive(pid) for pid in pids.values())


@pytest.mark.full
def test_ranks_listen_on_loopback_only_and_a_second_supervisor_is_refused(tmp_path):
    write_job(tmp_path)
    process = start("train", "job.yaml", "--steps", "1000000", cwd=tmp_path)
    run = wait_for_step(process, tmp_path, 5)
    command = psutil.Process(process.pid)
    listening = [
        connection.laddr.ip
        for member in (command, *command.children(recursive=True))
        for connection in member.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    before = run.plan_file.read_text()
    code, _, err = phalanx("train", "--resume", cwd=tmp_path)
    assert code == ExitCode.USAGE
    assert "error[run-busy]" in err
    assert str(process.pid) in err
    assert run.plan_file.read_text() == before, "the refused one changed the plan"
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] == ExitCode.STOPPED
    assert listening, "ranks on two processes must listen somewhere"
    assert set(listening) <= {"127.0.0.1", "::1"}


def test_exception_in_a_recipe_is_a_finding_with_its_line(tmp_path):
    broken = Path(RECIPE.rpartition(":")[0]).read_text()
    broken = broken.replace(
        "        out = model(", "        1 / (len(batch['x']) - 2)\n        out = model("
    )
    (tmp_path / "broken.py").write_text(broken)
    line = broken.splitlines().index("        1 / (len(batch['x']) - 2)") + 1
    code, _, err = phalanx(
        *("train", "broken.py:Parity", "--steps", "5", "--batch-size", "10", "--cpu", "2"),
        *("micro_batch_size=3", "precision=fp64"),
        cwd=tmp_path,
    )
    assert code == ExitCode.FAILED
    assert "error[rank-crashed]" in err
    assert "ZeroDivisionError" in err
    assert f"broken.py:{line}" in err
    assert "Traceback" not in err
    assert "Traceback" in latest(tmp_path).log_file(0).read_text()


@pytest.mark.full
def test_stop_while_the_ranks_start_is_a_stop(tmp_path):
    write_job(tmp_path)
    process = start("train", "job.yaml", "--steps", "1000000", cwd=tmp_path)
    deadline = time.monotonic() + 60
    while not (tmp_path / "runs" / "latest" / "events" / "supervisor.jsonl").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    code, out, err = finish(process, timeout_s=30)
    assert code == ExitCode.STOPPED, err
    assert "--resume" in out
