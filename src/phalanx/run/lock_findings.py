"""What is said about a run directory that somebody else holds."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from phalanx.errors import Finding, format_seconds
from phalanx.run.holder import Holder

_SHOWN = 4  # ranks that are named


def busy(path: Path, holder: Holder | None) -> Finding:
    """Refuse a run that another command holds."""
    where = _named(holder) if holder is not None else "unknown"
    return Finding(
        slug="run-busy",
        what=f"another process is training in `{path}`",
        why=f"its lock is held by {where}",
        fix=f"wait for it, or stop it, it saves first: `phalanx stop {shlex.quote(str(path))}`",
    )


def waiting_for_command(path: Path, holder: Holder) -> Finding:
    return Finding(
        slug="run-waiting",
        what=f"waiting for the command that holds `{path}`",
        why=f"its lock is held by {_named(holder)}; it is stopping, or its host no longer answers",
        fix="nothing to do: training starts when the lock is free; Ctrl-C ends the wait",
        severity="note",
    )


def waiting_for_ranks(path: Path, holders: Sequence[Holder], limit_s: float) -> Finding:
    return Finding(
        slug="run-waiting",
        what=f"waiting for ranks that still train in `{path}`",
        why=f"their command is gone, their locks are held by {_listed(holders)}; each finishes "
        "its step, saves and exits",
        fix=f"nothing to do: training starts when they are gone, after {format_seconds(limit_s)} "
        "at the latest",
        severity="note",
    )


def left_behind(path: Path, holders: Sequence[Holder]) -> Finding:
    """Refuse a run whose ranks cannot be ended from here."""
    far = sorted({holder.host for holder in holders if not holder.is_here})
    where = far[0] if far else "HOST"
    pids = " ".join(str(holder.pid) for holder in holders if holder.host == where) or "PID"
    return Finding(
        slug="run-busy",
        what=f"ranks whose command is gone still train in `{path}`",
        why=f"their locks are held by {_listed(holders)}; from here it cannot be proven that "
        "these processes are the run's, so none was ended",
        fix=f"end them where they run, then resume: `ssh {where} kill {pids}`",
    )


def unproven(path: Path, hosts: Sequence[str]) -> Finding:
    """Warn that ranks may be left on hosts that cannot be looked at."""
    return Finding(
        slug="owner-unproven",
        what=f"the last attempt in `{path}` wrote no end; its ranks may still run on "
        f"{', '.join(hosts)}",
        why="the run's locks are free, but not every file system shares locks between hosts, and "
        "the processes of another host cannot be seen from here",
        fix="nothing to do: a rank of an older attempt stops at its next write, without writing",
        severity="warning",
    )


def no_locks(path: Path, error: OSError) -> Finding:
    return Finding(
        slug="run-not-locked",
        what=f"`{path}` cannot be locked: {error.strerror}",
        why="a lock keeps a second command out of the run; this file system refuses flock",
        fix="output=FOLDER on another file system, or mount this one with locks (Lustre: flock)",
    )


def _listed(holders: Sequence[Holder]) -> str:
    shown = [_named(holder) for holder in holders[:_SHOWN]]
    more = len(holders) - len(shown)
    return "; ".join([*shown, *([f"{more} more"] if more else [])])


def _named(holder: Holder) -> str:
    """`rank 0 of attempt 3, process 4711 on h1, since 2026-01-31 12:00:00`."""
    rank = "" if holder.rank is None else f"rank {holder.rank} of attempt {holder.attempt}, "
    typed = f" (`{holder.command}`)" if holder.command else ""
    day = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder.since or 0))
    since = f", since {day}" if holder.since is not None else ""
    return f"{rank}process {holder.pid} on {holder.host}{typed}{since}"
