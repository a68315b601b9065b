"""Pictures and films of a run: `media/step-STEP/NAME.png`, each written whole."""

from __future__ import annotations

import re
from pathlib import Path

from phalanx.errors import Finding
from phalanx.run.directory import RunDirectory, write_atomic

_MOST_LETTERS = 100  # of a name; a file system takes 255 bytes


def write_media(run: RunDirectory, *, step: int, name: str, suffix: str, content: bytes) -> str:
    """Write one and return its path relative to the run directory; one that is there stays, and the
    new one gets a number. Of the name only letters, digits and `_.-` are kept: it comes from a
    recipe, and may be a class name or a path of somebody's."""
    kept = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip(".-")[:_MOST_LETTERS] or "media"
    folder = run.media / f"step-{step}"
    folder.mkdir(parents=True, exist_ok=True)
    path, number = folder / f"{kept}{suffix}", 1
    while path.exists():
        number += 1
        path = folder / f"{kept}-{number}{suffix}"
    write_atomic(path, content)
    return str(path.relative_to(run.path))


def find_media(run: RunDirectory, file: str) -> Path | None:
    """The file that a `media` event names: one below `media`, whatever the event says."""
    try:
        path = (run.path / file).resolve()
        is_there = path.is_relative_to(run.media.resolve()) and path.is_file()
    except (OSError, ValueError, RuntimeError):
        return None
    return path if is_there else None


def media_not_written(run: RunDirectory, name: str, error: OSError) -> Finding:
    """Training goes on without it."""
    return Finding(
        slug="media-not-written",
        what=f"`{name}` was not written: {error.strerror or error}",
        why=f"after an evaluation, under {run.media}",
        fix=f"df -h {run.path}; training goes on, and checkpoints are what needs the room",
        severity="warning",
    )
