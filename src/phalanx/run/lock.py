"""Who holds a run directory: one command at a time, and every rank that can still write into it.

`.lock` is locked for as long as the command lives, `.locks/ATTEMPT-RANK` for as long as a rank
does, whatever ends them; each file says who that is. The kernel frees a lock with its process, so a
file alone holds nothing. Only commands and ranks write into a run: their loader processes, sinks,
simulators and other children let go of the lock.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from phalanx.codec import from_json, to_json
from phalanx.errors import Finding, UserError
from phalanx.run import lock_findings as say
from phalanx.run.attempt import Attempt, read_attempt
from phalanx.run.directory import RunDirectory
from phalanx.run.holder import Holder, this_process
from phalanx.run.reading import read_end, read_json

_POLL_S = 0.2
_PROBE_S = 2.0
"""How long a lock may be held by somebody who only looks at it."""
_ALONE_S = 60.0
"""What a rank gets to end its step and save, once nobody watches over it."""
_WATCHED_S = 660.0
"""The same while its launcher lives, which ends ranks that hang (engine/launcher/agent.py)."""
_FAR_S = 120.0
"""For another host: an NFS server frees the locks of a host that crashed after 90 s."""
_END_S = 20.0
"""From SIGKILL to the end of a process."""
_TAIL_BYTES = 1 << 20

_held: set[int] = set()
"""Descriptors of locks that this process holds."""


@contextmanager
def lock_run(
    run: RunDirectory,
    *,
    command: Sequence[str] = (),
    tell: Callable[[Finding], None] = lambda finding: None,
) -> Iterator[None]:
    """Hold the run directory for one supervisor. A second one is refused while the first trains. It
    waits for one that is stopping, and for ranks that a killed one has left; `tell` hears for whom.
    """
    descriptor = _take_over(run, tell)
    try:
        before = read_holder(run)
        _write(descriptor, replace(this_process(), command=shlex.join(command)))
        _wait_for_ranks(run, tell)
        if far := _unseen_hosts(run, before):
            tell(say.unproven(run.path, far))
        yield
    finally:
        _remove_free(run)
        _let_go(descriptor)


def hold_rank(run: RunDirectory, *, attempt: int, rank: int) -> None:
    """Hold the run as one of its ranks, for as long as this process lives. Raises RunTakenError if
    the run belongs to a newer attempt already."""
    folder = _ranks(run)
    with suppress(OSError):  # a full disk ends no run
        folder.mkdir(exist_ok=True)
        while (descriptor := _take(folder / f"{attempt}-{rank}")) is None:
            time.sleep(_POLL_S)  # somebody looks at it
        _write(descriptor, replace(this_process(), attempt=attempt, rank=rank))
    # After the lock: a command that has not seen it has recorded its own attempt before.
    Attempt(None, attempt).check(run.path)


def is_held(run: RunDirectory) -> bool:
    """Whether a command or a rank holds the run directory now."""
    return _is_locked(run.path / ".lock") or any(map(_is_locked, _rank_files(run)))


def read_holder(run: RunDirectory) -> Holder | None:
    """The command that holds the run directory, or held it last; None when that is not written
    there."""
    return _read(run.path / ".lock")


def read_ranks(run: RunDirectory) -> list[Holder]:
    """The ranks that hold the run directory now, as far as they have said who they are."""
    found = [_read(path) for path in _rank_files(run) if _is_locked(path)]
    return [holder for holder in found if holder is not None]


def _take_over(run: RunDirectory, tell: Callable[[Finding], None]) -> int:
    began, is_told = time.monotonic(), False
    while (descriptor := _take(run.path / ".lock")) is None:
        holder = read_holder(run)
        if holder is None or (holder.is_here and not holder.is_alive()):
            limit_s = _PROBE_S
        elif holder.is_here:
            limit_s = float("inf") if _last_word(run) == "stop" else 0.0
        else:
            limit_s = _FAR_S
        if time.monotonic() - began >= limit_s:
            raise UserError(say.busy(run.path, holder))
        if holder is not None and limit_s > _PROBE_S and not is_told:
            tell(say.waiting_for_command(run.path, holder))
            is_told = True
        time.sleep(_POLL_S)
    return descriptor


def _wait_for_ranks(run: RunDirectory, tell: Callable[[Finding], None]) -> None:
    """Wait until no rank holds the run. Those that do not end by themselves are ended, if their
    number and start prove that they are the ones that took the lock."""
    began, is_told = time.monotonic(), False
    while any(map(_is_locked, _rank_files(run))):
        holders = read_ranks(run)
        alive = [holder for holder in holders if holder.is_alive()]
        patience_s = _WATCHED_S if any(h.has_starter() for h in alive) else _ALONE_S
        limit_s = patience_s + _END_S if len(alive) == len(holders) else _FAR_S
        waited_s = time.monotonic() - began
        if waited_s > limit_s:
            raise UserError(say.left_behind(run.path, holders))
        if holders and not is_told:
            tell(say.waiting_for_ranks(run.path, holders, min(patience_s, limit_s)))
            is_told = True
        for holder in alive if waited_s > patience_s else ():
            with suppress(PermissionError):
                holder.send(signal.SIGKILL)
        time.sleep(_POLL_S)


def _unseen_hosts(run: RunDirectory, before: Holder | None) -> list[str]:
    """Other hosts on which ranks of an attempt without an end may still run: the lock is free, but
    not every file system shares locks between hosts."""
    newest = read_attempt(run.path)
    hosts = {*(newest.hosts if newest is not None else ()), *([before.host] if before else ())}
    return sorted(hosts - {platform.node()}) if _last_word(run) in ("attempt", "stop") else []


def _last_word(run: RunDirectory) -> str:
    """Which of `attempt`, `stop` and `outcome` the supervisor wrote last; empty when none."""
    tail = read_end(run.events / "supervisor.jsonl", _TAIL_BYTES)
    places = {k: tail.rfind(f'"kind":"{k}"'.encode()) for k in ("attempt", "stop", "outcome")}
    last = max(places, key=places.__getitem__)
    return last if places[last] >= 0 else ""


def _ranks(run: RunDirectory) -> Path:
    return run.path / ".locks"


def _rank_files(run: RunDirectory) -> list[Path]:
    return sorted(_ranks(run).glob("*-*"))


def _remove_free(run: RunDirectory) -> None:
    """Remove the files of ranks that are gone."""
    for path in _rank_files(run):
        with suppress(OSError, UserError):
            descriptor = _take(path)
            if descriptor is not None:
                path.unlink()
                _let_go(descriptor)
    with suppress(OSError):
        _ranks(run).rmdir()


def _take(path: Path) -> int | None:
    """Lock a file; None while another process has it locked."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return None
            raise UserError(say.no_locks(path, error)) from None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                _held.add(descriptor)
                return descriptor
        os.close(descriptor)  # it was removed before it was locked


def _let_go(descriptor: int) -> None:
    _held.discard(descriptor)
    os.close(descriptor)


def _let_go_in_child() -> None:
    """A fork would hold the lock of a process that is gone."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_let_go_in_child)


def _is_locked(path: Path) -> bool:
    try:
        file = path.open("rb")  # of another user it may only be read
    except OSError:
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _write(descriptor: int, holder: Holder) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(to_json(holder)).encode(), 0)


def _read(path: Path) -> Holder | None:
    try:
        return from_json(Holder, read_json(path))
    except ValueError:
        return None
