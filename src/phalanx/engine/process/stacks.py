"""Where ranks that hang are stuck: each writes the stacks of its threads into its log when it is
asked by a signal, and the collectives it has begun into a file beside it.

The stacks are written by C code inside the signal handler (faulthandler): also by a rank whose
interpreter is held by a call that never returns. A rank that was stopped (SIGSTOP) cannot answer;
its state says so. The collectives are those of torch's Flight Recorder, asked by a thread that
waits for another signal and does nothing else: it needs the interpreter, so a rank that holds it
does not answer this one. That signal cannot be blocked and waited for: the threads of the CUDA
driver unblock what they like, and one of them would take it, which ends a process by default. So it
is handled, whichever thread takes it, and what Python writes into a pipe then wakes the thread.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from phalanx.run.directory import RunDirectory
from phalanx.run.launching import Witness

_PATIENCE_S = 3.0
_QUIET_S = 0.2  # a log that has not grown for so long is written
_MOST_BYTES = 1 << 17
_LAST = 20


def answer_when_asked() -> None:
    """In a rank, before it has a thread: from here on SIGUSR2 writes its stacks into its log, as a
    crash in native code does."""
    faulthandler.enable(file=2, all_threads=False)
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR2, file=2, all_threads=True)
    number = _collectives_signal()
    if number is not None:
        signal.signal(number, lambda *_: None)


def answer_with_collectives(run: RunDirectory, rank: int) -> None:
    """In a rank of several, once its loader processes are forked."""
    number = _collectives_signal()
    if number is None:
        return

    waked, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)

    def serve() -> None:
        while True:
            if number not in os.read(waked, 64):  # the numbers of all signals handled
                continue
            with suppress(Exception):  # whatever torch has or does not have
                _write_collectives(run.collectives_file(rank))

    threading.Thread(target=serve, name="collectives on request", daemon=True).start()


def _collectives_signal() -> int | None:
    return signal.SIGRTMIN + 7 if sys.platform == "linux" else None


def _write_collectives(path: Path) -> None:
    from torch._C import _distributed_c10d as c10d

    known = ("_dump_fr_trace_json", "_dump_nccl_trace_json")  # the latter before torch 2.11
    dump = next(getattr(c10d, name) for name in known if hasattr(c10d, name))
    record = json.loads(dump())
    short = {"status": record.get("pg_status", {}), "last": record.get("entries", [])[-_LAST:]}
    part = path.with_suffix(".part")
    part.write_text(json.dumps(short), encoding="utf-8")
    part.replace(path)


def collect_stacks(run: RunDirectory, pids: Mapping[int, int]) -> list[Witness]:
    """Return what each rank of this machine answers."""
    states = {rank: _state(pid) for rank, pid in pids.items()}
    sizes = {rank: _size(run.log_file(rank)) for rank in pids}
    for rank, pid in pids.items():
        run.collectives_file(rank).unlink(missing_ok=True)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR2)  # first: a signal may end the call that the rank is in
            if (number := _collectives_signal()) is not None:
                os.kill(pid, number)
    _wait_until_written(run, {rank: size for rank, size in sizes.items() if states[rank] != "T"})
    return [
        Witness(
            rank,
            states[rank],
            stacks=_read_from(run.log_file(rank), sizes[rank]),
            collectives=_read_json(run.collectives_file(rank)),
        )
        for rank in pids
    ]


def _wait_until_written(run: RunDirectory, sizes: Mapping[int, int]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    now, since = dict(sizes), time.monotonic()
    while time.monotonic() < deadline:
        time.sleep(0.02)
        before, now = now, {rank: _size(run.log_file(rank)) for rank in sizes}
        if now != before:
            since = time.monotonic()
        has_all = all(now[rank] > size for rank, size in sizes.items())
        if has_all and time.monotonic() - since > _QUIET_S:
            return


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read_from(path: Path, offset: int) -> str:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(_MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _state(pid: int) -> str:
    """The letter of proc(5); ? where that cannot be told."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return text.rpartition(")")[2].split()[0].upper()
    except (OSError, IndexError):
        return "?"
