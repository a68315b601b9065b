"""`--detach`: a command that checks and plans in the foreground, and goes on without a terminal.

    terminal    fork -> waits for word                            -> prints where it runs, exits 0
    session         of its own, SIGHUP ignored: checks, plans, opens the run, gives word, trains

All is done by the second process, so that nothing is handed over: what is wrong is seen while the
first one waits, and its exit code is then the second one's.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

from phalanx.errors import short_path
from phalanx.output import console
from phalanx.run.directory import RunDirectory

Leave = Callable[[RunDirectory], None]
"""To be called once the run directory is held: the command leaves its terminal."""


def in_background(work: Callable[[Leave], int]) -> int:
    """Do `work` in a session of its own. Returns 0 in the command as soon as it goes on alone, and
    the exit code of `work` if that ends before."""
    sys.stdout.flush()
    sys.stderr.flush()
    heard, told = os.pipe()
    # Nothing else runs in this process yet: no thread could hold a lock that the child then misses.
    pid = os.fork()
    if pid:
        os.close(told)
        return _wait_for_word(pid, heard)
    os.close(heard)
    _become_session()
    return work(_Leaving(told))


class _Leaving:
    """Leaves the terminal and gives word, once."""

    def __init__(self, told: int) -> None:
        self._told: int | None = told

    def __call__(self, run: RunDirectory) -> None:
        if self._told is None:
            return
        console.write_to(run.command_log)
        word = json.dumps({"run": str(run.path), "pid": os.getpid()})
        with suppress(BrokenPipeError):
            os.write(self._told, word.encode())
        os.close(self._told)
        self._told = None


def _become_session() -> None:
    os.setsid()  # a terminal that closes ends the processes of its own session
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.close(nowhere)


def _wait_for_word(pid: int, heard: int) -> int:
    def pass_on(number: int, frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGINT)  # it is not ours to answer: the session is another one

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    caught = [n for n in numbers if signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, pass_on) for number in caught}
    try:
        word = b"".join(iter(lambda: os.read(heard, 4096), b""))
        if word:
            record = json.loads(word)
            _show(short_path(Path(record["run"])), record["pid"])
            return 0
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return code if code >= 0 else 128 - code
    finally:
        os.close(heard)
        for number, handler in before.items():
            signal.signal(number, handler)


def _show(run: Path, pid: int) -> None:
    log = run / "logs" / RunDirectory(run).command_log.name
    console.table(
        [
            ("run", str(run)),
            ("process", f"{pid}, goes on when this terminal is closed"),
            ("log", str(log)),
        ]
    )
    console.say_next(
        (f"phalanx watch {run}", "see how it goes"),
        (f"tail -f {log}", "what it says"),
        (f"phalanx stop {run}", "let it save and end"),
    )
