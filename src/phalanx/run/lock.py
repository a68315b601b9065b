"""Who holds a run directory: one command at a time, known by a number that nobody else can have.

`.lock` is locked for as long as the command lives, whatever ends it, and says who that is.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from phalanx.errors import Finding, UserError
from phalanx.run.directory import RunDirectory


@dataclass(frozen=True)
class Holder:
    """The command that holds a run directory."""

    pid: int
    host: str
    born: str
    """When it started: a number that was given to another process meanwhile is not this one."""
    slurm_job: str | None = None
    """The Slurm job it runs in."""
    starter: str | None = None
    """The process that started it, in the same way; torchrun's begins it again."""

    @property
    def is_here(self) -> bool:
        return self.host == platform.node()

    def is_alive(self) -> bool:
        """Whether it still runs, on this machine."""
        return self.is_here and _born(self.pid) == self.born

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


@contextmanager
def lock_run(run: RunDirectory) -> Iterator[None]:
    """Hold the run directory for one supervisor; a second one is refused."""
    with (run.path / ".lock").open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(_busy(run)) from None
        file.truncate(0)
        file.write(json.dumps(asdict(this_process())))
        file.flush()
        yield


def is_held(run: RunDirectory) -> bool:
    """Whether a command holds the run directory now."""
    try:
        file = (run.path / ".lock").open("rb")  # of another user it may only be read
    except OSError:
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def read_holder(run: RunDirectory) -> Holder | None:
    """Who holds the run directory, or held it last; None when that is not written there."""
    try:
        return Holder(**json.loads((run.path / ".lock").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _busy(run: RunDirectory) -> Finding:
    holder = read_holder(run)
    where = f"process {holder.pid} on {holder.host}" if holder is not None else "unknown"
    return Finding(
        slug="run-busy",
        what=f"another process is training in `{run.path}`",
        why=f"its lock is held by {where}",
        fix=f"wait for it, or stop it, it saves first: `phalanx stop {run.path}`",
    )
