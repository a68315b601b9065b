"""Processes in a session of their own, ended with all that they started: loader processes outlive
whoever started them, and would take time from what is measured next."""

import os
import signal
import subprocess
import time

import psutil


def start_session(argv, *, env=None, stdout=None, stderr=subprocess.STDOUT):
    return subprocess.Popen(
        argv,
        env={**os.environ, **(env or {})},
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )


def end_session(process, *, grace_s=10.0):
    """Nothing of it is left afterwards; whatever does not end by itself in time is killed."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + grace_s
        for member in _members(process):
            try:
                member.send_signal(how)
            except psutil.NoSuchProcess:
                continue
        while _members(process) and time.monotonic() < until:
            time.sleep(0.05)
    process.wait()


def _members(process):
    """The living of a session, its leader among them or gone already."""
    process.poll()  # a leader that ended is not to be counted
    found = []
    for one in psutil.process_iter():
        try:
            if os.getsid(one.pid) == process.pid and one.status() != psutil.STATUS_ZOMBIE:
                found.append(one)
        except (psutil.NoSuchProcess, ProcessLookupError, PermissionError):
            continue
    return found
