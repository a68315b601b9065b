"""Pictures and films of a run: `media/step-STEP/NAME.png`, each written whole."""

from __future__ import annotations

import re
from itertools import count
from pathlib import Path

from phalanx.errors import Finding
from phalanx.run.directory import RunDirectory, write_atomic
from phalanx.run.guards import find_inside

_MOST_LETTERS = 100  # of a name; a file system takes 255 bytes


def write_media(run: RunDirectory, *, step: int, name: str, suffix: str, content: bytes) -> str:
    """Write one and return its path relative to the run directory."""
    path = write_named(run.media / f"step-{step}", name, suffix, content)
    return str(path.relative_to(run.path))


def write_named(folder: Path, name: str, suffix: str, content: bytes) -> Path:
    """Write a file into a folder and return its path. Of the name only letters, digits and `_.-`
    are kept: it comes from a recipe, and may be a class name or a path of somebody's. A number is
    added where that name has another content already."""
    kept = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip(".-")[:_MOST_LETTERS] or "media"
    ending = re.sub(r"[^A-Za-z0-9.]+", "", suffix)
    folder.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        path = folder / (f"{kept}{ending}" if number == 1 else f"{kept}-{number}{ending}")
        try:
            write_atomic(path, content, is_new=True)
        except FileExistsError:
            if not path.is_file() or path.read_bytes() != content:
                continue
        return path
    raise AssertionError("numbers do not end")


def find_media(run: RunDirectory, file: str) -> Path | None:
    """The file that a `media` event names: one below `media`, whatever the event says."""
    if not file.startswith(f"{run.media.name}/"):
        return None
    path = find_inside(run.media, file.removeprefix(f"{run.media.name}/"))
    return path if path is not None and path.is_file() else None


def media_not_written(run: RunDirectory, name: str, error: OSError) -> Finding:
    """Training goes on without it."""
    return Finding(
        slug="media-not-written",
        what=f"`{name}` was not written: {error.strerror or error}",
        why=f"after an evaluation, under {run.media}",
        fix=f"df -h {run.path}; training goes on, and checkpoints are what needs the room",
        severity="warning",
    )
