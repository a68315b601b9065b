"""What was read of long runs, in the user's cache, so that it need not be read again."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from phalanx.codec import from_json, to_json
from phalanx.run.cache import cache_folder
from phalanx.run.directory import write_atomic
from phalanx.watch.state import RunState

_FORMAT = 4
_MOST_FILES = 200
_MARK = 256  # bytes by which a file is known to be the same up to a place


class Place(NamedTuple):
    """How far a file has been read."""

    inode: int
    offset: int
    mark: str
    """Hash of what stands before the place."""


@dataclass
class _Saved:
    """A file of this cache."""

    format: int
    run: str
    places: dict[str, Place]
    state: RunState


def place_of(inode: int, offset: int, before: bytes) -> Place:
    return Place(inode, offset, _hash(before[-_MARK:]))


def keep(run: Path, state: RunState, places: dict[str, Place]) -> None:
    """Remember what was read."""
    record = to_json(_Saved(_FORMAT, str(run), places, state))
    path = _file(run)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomic(path, json.dumps(record))
    old = sorted(path.parent.glob("run-*.json"), key=lambda p: p.stat().st_mtime)
    for one in old[:-_MOST_FILES]:
        one.unlink(missing_ok=True)


def kept(run: Path) -> tuple[RunState, dict[str, Place]] | None:
    """What was remembered, when the files still begin as they did."""
    try:
        record = json.loads(_file(run).read_text(encoding="utf-8"))
        if record["format"] != _FORMAT or record["run"] != str(run):
            return None
        saved = from_json(_Saved, record)
        if all(_is_same(run / "events" / name, place) for name, place in saved.places.items()):
            return saved.state, saved.places
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def _is_same(path: Path, place: Place) -> bool:
    with path.open("rb") as file:
        about = os.fstat(file.fileno())
        start = max(0, place.offset - _MARK)
        before = os.pread(file.fileno(), place.offset - start, start)
    return (
        about.st_ino == place.inode
        and about.st_size >= place.offset
        and _hash(before) == place.mark
    )


def _file(run: Path) -> Path:
    return cache_folder("watch") / f"run-{_hash(str(run).encode())}.json"


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:24]
