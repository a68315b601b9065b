"""A process told from every other one: by its number, its host and when it started."""

from __future__ import annotations

import os
import platform
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class Holder:
    """A process that holds a run directory: a command, or a rank."""

    pid: int
    host: str
    born: str
    """When it started: a number that was given to another process meanwhile is not this one."""
    slurm_job: str | None = None
    """The Slurm job it runs in."""
    starter: str | None = None
    """The process that started it, in the same way; torchrun's begins it again."""
    command: str | None = None
    """What was typed; None for a rank."""
    since: float | None = None
    """When it took the run, in seconds since 1970."""
    attempt: int | None = None
    rank: int | None = None

    @property
    def is_here(self) -> bool:
        return self.host == platform.node()

    def is_alive(self) -> bool:
        """Whether it still runs, on this machine."""
        return self.is_here and _born(self.pid) == self.born

    def has_starter(self) -> bool:
        """Whether the process that started it still runs, on this machine."""
        pid, _, born = (self.starter or "").partition(":")
        return self.is_here and pid.isdecimal() and _born(int(pid)) == born

    def send(self, number: signal.Signals) -> bool:
        """Send it a signal, and no other process; False when it is gone."""
        if not self.is_here:
            return False
        if not hasattr(os, "pidfd_open"):  # macOS
            if self.is_alive():
                os.kill(self.pid, number)
                return True
            return False
        try:
            descriptor = os.pidfd_open(self.pid)
        except OSError:
            return False
        try:
            # The descriptor stays with the process that had the number when it was opened.
            if not self.is_alive():
                return False
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)
        return True


def this_process() -> Holder:
    """This process as the holder of a run."""
    pid = os.getpid()
    starter = os.getppid()
    return Holder(
        pid,
        platform.node(),
        _born(pid) or "",
        os.environ.get("SLURM_JOB_ID"),
        f"{starter}:{_born(starter)}",
        since=time.time(),
    )


def _born(pid: int) -> str | None:
    """Of one boot of one machine; a clock that is set does not change it."""
    stat = Path(f"/proc/{pid}/stat")
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        # proc(5): the state is the third field and comes first here, the start is the 22nd.
        return None if fields[0] == "Z" else f"{boot}:{fields[19]}"
    except FileNotFoundError:
        pass
    except (OSError, IndexError):
        return None
    if stat.parent.parent.joinpath("self").exists():
        return None  # there is a /proc, and no such process in it
    try:
        return f"{psutil.Process(pid).create_time():.2f}"
    except psutil.Error:
        return None
