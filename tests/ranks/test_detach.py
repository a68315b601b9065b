"""Commands that outlive their terminal, and `phalanx stop`, which finds them again."""

import os
import pty
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from phalanx.errors import ExitCode
from phalanx.run.directory import RunDirectory
from phalanx.run.lock import read_holder
from tests.fixtures.event_lines import read_events
from tests.ranks.command import is_alive, latest, phalanx
from tests.ranks.runs import RECIPE, outcomes

JOB = f"""
recipe: {RECIPE}
steps: 1000000
global_batch_size: 10
precision: fp64
seed: 3
logging: {{every: 5, tensorboard: false}}
checkpoint: {{every: 1000 steps}}
evaluate: {{every: null}}
devices: {{cpu: 2}}
"""


# The first terminal that a session opens is its own: it gets SIGHUP when that is closed.
TAKE_TERMINAL = (
    "import os, sys; os.close(os.open(os.ttyname(0), os.O_RDWR)); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)


@contextmanager
def in_terminal(folder, *argv):
    """A command that has a terminal of its own, as one typed into a window has; the window closes
    with what this gives."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", TAKE_TERMINAL, "-m", "phalanx", *argv],
        cwd=folder,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    window = {"open": True}

    def close():
        if window.pop("open", None):
            os.close(ours)

    def read():
        text = b""
        with suppress(OSError):  # how a terminal ends whose last writer has gone
            while chunk := os.read(ours, 4096):
                text += chunk
        return text.decode()

    try:
        yield process, read, close
    finally:
        close()
        end(process, folder)


def end(process, folder):
    """No test leaves a process behind, also when it fails."""
    if process.poll() is None:
        process.kill()
    process.wait()
    for path in (folder / "runs").glob("*/.lock"):
        holder = read_holder(RunDirectory(path.parent))
        if holder is not None and holder.send(signal.SIGKILL):
            until(lambda holder=holder: not holder.is_alive())


def until(is_true, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < deadline, f"not so after {timeout_s} s"
        time.sleep(0.05)


def last_step(run):
    return max((e.data["step"] for e in read_events(run.events) if e.kind == "step"), default=0)


def wait_for_steps(folder, step=5):
    until((folder / "runs" / "latest" / "events").is_dir)
    run = latest(folder)
    until(lambda: last_step(run) >= step)
    return run


def test_a_detached_run_outlives_its_terminal_and_is_stopped_by_name(tmp_path):
    (tmp_path / "job.yaml").write_text(JOB)
    with in_terminal(tmp_path, "train", "job.yaml", "--detach", "--name", "away") as terminal:
        process, read, close = terminal
        said = read()
        assert process.wait(60) == 0, said
        close()
        run = wait_for_steps(tmp_path)
        pid = int(re.search(r"process\s+(\d+)", said)[1])
        holder = read_holder(run)
        assert holder.pid == pid and holder.is_alive()
        assert "tail -f runs/away/logs/command.log" in said
        assert "phalanx stop runs/away" in said
        os.kill(pid, signal.SIGHUP)
        before = last_step(run)
        until(lambda: last_step(run) > before + 20)
        assert str(Path(f"/proc/{pid}/fd/0").readlink()) == "/dev/null"
        assert os.getsid(pid) == pid
        code, out, err = phalanx("stop", "away", cwd=tmp_path)
        assert code == 0, err
        assert not holder.is_alive()
        step = outcomes(run)[-1]["step"]
        assert f"stopped at step {step}" in out
        assert "phalanx train --resume runs/away" in out
        assert (run.checkpoints / f"checkpoint-{step}").is_dir()
        log = run.command_log.read_text()
        assert "world size 2 over gloo" in log and "continue:" in log
        assert "\x1b" not in log, "a log has no colours"
        code, _, err = phalanx("stop", cwd=tmp_path)
        assert code == 0
        assert f"note[not-running]: `{run.path}` does not run: stopped at step {step}" in err


def test_what_is_wrong_is_seen_before_it_is_left(tmp_path):
    code, out, err = phalanx("train", "nosuch", "--detach", cwd=tmp_path)
    assert code == ExitCode.USAGE
    assert "error[unknown-job]" in err
    assert "next:" not in out
    assert not (tmp_path / "runs").exists()


@pytest.mark.full
def test_a_closed_terminal_stops_a_plain_run_in_order(tmp_path):
    (tmp_path / "job.yaml").write_text(JOB)
    with in_terminal(tmp_path, "train", "job.yaml") as (process, _, close):
        run = wait_for_steps(tmp_path)
        close()
        assert process.wait(60) == ExitCode.STOPPED
        outcome = outcomes(run)[-1]
        assert outcome["status"] == "stopped"
        assert (run.checkpoints / f"checkpoint-{outcome['step']}").is_dir()


@pytest.mark.full
def test_under_nohup_a_closed_terminal_changes_nothing(tmp_path):
    (tmp_path / "job.yaml").write_text(JOB)
    process = subprocess.Popen(
        ["nohup", sys.executable, "-m", "phalanx", "train", "job.yaml"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        run = wait_for_steps(tmp_path)
        process.send_signal(signal.SIGHUP)
        before = last_step(run)
        until(lambda: last_step(run) > before + 20)
        code, out, err = phalanx("stop", "--now", cwd=tmp_path)
        assert code == 0, err
        assert "interrupted by a second signal" in out
        assert process.wait(30) == ExitCode.INTERRUPTED
    finally:
        end(process, tmp_path)


SCRIPT = """
import signal, sys, time
def save(number, frame):
    print("saving", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
for step in range(1, 100000):
    print(f"step {step} loss 0.5", flush=True)
    time.sleep(0.05)
"""


def test_a_launched_script_is_detached_and_stopped_too(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    with in_terminal(tmp_path, "launch", "--detach", "--cpu", "2", "script.py") as terminal:
        process, read, close = terminal
        said = read()
        assert process.wait(60) == 0, said
        close()
        run = wait_for_steps(tmp_path)
        code, out, err = phalanx("stop", cwd=tmp_path)
        assert code == 0, err
        assert "stopped at step" in out
        assert "saving" in run.log_file(1).read_text()
        assert "finished" not in run.command_log.read_text()
        starts = [e.data["pid"] for e in read_events(run.events) if e.kind == "start"]
        assert not any(map(is_alive, starts))


def test_a_run_on_another_host_is_not_signalled(tmp_path):
    """Its lock is held, by a process of this machine that only says it is elsewhere."""
    (tmp_path / "runs" / "far").mkdir(parents=True)
    (tmp_path / "runs" / "far" / "plan.json").write_text("{}")
    code = (
        "import platform, sys; platform.node = lambda: 'node7'\n"
        "from pathlib import Path\n"
        "from phalanx.run.directory import RunDirectory\nfrom phalanx.run.lock import lock_run\n"
        "with lock_run(RunDirectory(Path('runs/far'))):\n"
        "    print('held', flush=True); sys.stdin.read()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout.readline() == "held\n"
        code, _, err = phalanx("stop", "far", cwd=tmp_path)
        assert code == ExitCode.FAILED
        assert "error[run-elsewhere]" in err and "runs on node7" in err
        assert f"process {holder.pid}" in err
        assert holder.poll() is None
    finally:
        holder.kill()
        holder.communicate()
