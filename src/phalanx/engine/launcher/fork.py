"""A rank as a fork of the launcher: torch is imported already, all else is as in a new process."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import numpy as np

from phalanx.engine.launcher.rank_process import run_rank
from phalanx.engine.process.group import StopRequest
from phalanx.engine.process.heartbeat import HEART

_OPENBLAS_CALLS = ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads")


class ForkedRank:
    """A rank that was forked from this process; to be waited for as a `Popen` is."""

    def __init__(
        self, run: Path, attempt: int, environment: dict[str, str], cells: memoryview[float]
    ) -> None:
        """`cells` is its place on the board of heartbeats."""
        parent = os.getpid()
        # Kept back in the rank until it listens to them: with one rank that was ended by a signal
        # and one that had heard it, the second would wait for the first.
        signal.pthread_sigmask(signal.SIG_BLOCK, StopRequest.SIGNALS)
        self.pid = os.fork()
        if self.pid == 0:
            HEART.write_to(cells)
            _be_rank(run, attempt, environment, parent)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, StopRequest.SIGNALS)
        self._code: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code


def _be_rank(run: Path, attempt: int, environment: dict[str, str], parent: int) -> NoReturn:
    """Never returns: what the stack below belongs to is the launcher's."""
    code = 1
    try:
        become_new(environment)
        sys.argv = [sys.argv[0], str(run)]
        code = run_rank(run, attempt) if os.getppid() == parent else 1
    except SystemExit as leave:
        code = _exit_code(leave)
    except BaseException:
        traceback.print_exc()
    # As the interpreter ends, without taking it down: threads, atexit, output.
    with suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    with suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def become_new(environment: dict[str, str]) -> None:
    """What a new process would have: its own session, signals, files, environment and numbers.
    Standard input is /dev/null, as the launcher's."""
    os.setsid()  # whoever kills the rank takes its loader processes too
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # The way to the command and the agent's store. Their owners are never freed here. Those that
    # are open, and not all that may be: a container allows a billion, and an older libc tries each.
    for descriptor in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if descriptor > 2:
            with suppress(OSError):  # the one that listed them
                os.close(descriptor)
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)
    if "numpy.random" in sys.modules:
        np.random.seed()  # not the same numbers in every rank; Python's are its own already
    set_openblas_threads(environment)


def set_openblas_threads(environment: dict[str, str]) -> None:
    """NumPy's BLAS has read its number of threads when it was loaded; torch's is set in `join`."""
    wanted = environment.get("OPENBLAS_NUM_THREADS") or environment.get("OMP_NUM_THREADS", "")
    if not wanted.isdecimal():
        return
    mapped = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    for path in {line.split(maxsplit=5)[-1] for line in mapped if "openblas" in line}:
        with suppress(OSError):
            library = ctypes.CDLL(path)
            for name in _OPENBLAS_CALLS:
                if hasattr(library, name):
                    getattr(library, name)(int(wanted))


def _exit_code(leave: SystemExit) -> int:
    """As the interpreter takes it."""
    if leave.code is None or isinstance(leave.code, int):
        return (leave.code or 0) & 0xFF
    traceback.print_exc()  # with its text
    return 1
