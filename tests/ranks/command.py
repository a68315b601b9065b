"""Runs the real `phalanx` command as a user does: a process of its own, output captured."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from phalanx.run.directory import RunDirectory
from tests.fixtures.event_lines import read_events

_STARTED = []


def start(*argv, cwd, env=None):
    """Start the command; it runs in the background, no longer than the test."""
    process = subprocess.Popen(
        [sys.executable, "-m", "phalanx", *argv],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    _STARTED.append(process)
    return process


def end_started():
    """End what a test has started and not waited for, because it failed."""
    while _STARTED:
        process = _STARTED.pop()
        if process.poll() is None:
            process.kill()
            process.communicate()


def finish(process, timeout_s=90):
    """Wait for a command: (exit code, stdout, stderr)."""
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"still running after {timeout_s} s:\n{out}\n{err}") from None
    except BaseException:  # the test's own limit: nothing is left behind
        process.kill()
        process.communicate()
        raise
    return process.returncode, out, err


def phalanx(*argv, cwd, env=None, timeout_s=90):
    """Run the command to its end."""
    return finish(start(*argv, cwd=cwd, env=env), timeout_s)


def latest(cwd):
    return RunDirectory((cwd / "runs" / "latest").resolve())


def wait_for_step(process, cwd, step, timeout_s=60):
    """Wait until the newest run has done this many steps; returns its directory."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if (cwd / "runs" / "latest" / "events").is_dir():
            run = latest(cwd)
            done = [e.data["step"] for e in read_events(run.events) if e.kind == "step"]
            if done and max(done) >= step:
                return run
        assert process.poll() is None, finish(process)
        time.sleep(0.05)
    raise AssertionError(f"step {step} was not reached within {timeout_s} s")


def rank_pids(run):
    """Process ids of the ranks of the newest attempt, by rank."""
    starts = [event for event in read_events(run.events) if event.kind == "start"]
    newest = max(event.attempt for event in starts)
    return {e.data["rank"]: e.data["pid"] for e in starts if e.attempt == newest}


def kill(pid, number=signal.SIGKILL):
    os.kill(pid, number)


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state != "Z"  # a zombie is not alive
