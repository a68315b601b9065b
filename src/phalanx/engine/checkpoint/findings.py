"""What there is to say about saving: each a Finding a person can act on."""

from __future__ import annotations

import errno
import shlex
from pathlib import Path

from phalanx.errors import Finding, format_seconds
from phalanx.run.directory import RunDirectory

_CAUSES = {
    errno.ENOSPC: ("the disk is full", "free space there: `df -h {folder}`"),
    errno.EDQUOT: ("the quota is used up", "free space there: `quota -s`, `du -sh {folder}`"),
    errno.EROFS: ("the file system is read-only", "`mount | grep ro,`; mount it for writing"),
    errno.EACCES: ("this user may not write there", "`ls -ld {folder}`"),
    errno.EPERM: ("this user may not write there", "`ls -ld {folder}`"),
}


def not_saved(error: BaseException, step: int, folder: Path) -> Finding:
    """Writing a checkpoint failed, and training goes on."""
    number = error.errno if isinstance(error, OSError) else None
    cause, look = _CAUSES.get(
        number or 0,
        ("an error of the file system", "`dmesg | tail`; the whole error is in the log"),
    )
    return Finding(
        slug="checkpoint-not-saved",
        what=f"the checkpoint of step {step} was not saved: {cause}",
        why=f"{type(error).__name__}: {error}; the checkpoints before it stand, training goes on "
        "and the next one is tried",
        fix=look.format(folder=shlex.quote(str(folder))),
        severity="warning",
    )


def state_lost(run: RunDirectory, step: int, newest: int | None) -> Finding:
    """The run is over and its last state is on no disk."""
    stands = f"step {newest} is the newest that is" if newest is not None else "none is"
    return Finding(
        slug="checkpoint-lost",
        what=f"the run ended at step {step} and its state could not be saved; {stands}",
        why="see checkpoint-not-saved above; it was tried again at the end",
        fix=f"make room, then go on from there: `phalanx train --resume {run.path}`",
    )


def waited(seconds: float) -> Finding:
    """One checkpoint was due while the one before was still being written."""
    return Finding(
        slug="checkpoint-waited",
        what=f"training waited {format_seconds(seconds)} for a checkpoint to be written before the "
        "next could be copied",
        why="there is one copy in host memory, and the disk is slower than checkpoint.every",
        fix="checkpoint.every=auto waits for the disk, or save less often",
        severity="warning",
    )


def in_foreground(error: BaseException) -> Finding:
    """No copy is made: training waits while a checkpoint is written."""
    return Finding(
        slug="checkpoint-in-foreground",
        what="training stands still while checkpoints are written",
        why=f"there is no host memory for a copy of the state: {error}",
        fix="nothing, or save less often; checkpoint.background=off does not try",
        severity="note",
    )
