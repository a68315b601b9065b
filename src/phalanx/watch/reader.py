"""Reads the events of a run directory into a `RunState`, and goes on reading as they are written.

Nothing is written into the run directory. Of a long file most steps are only counted, and their
loss looked at for how far it went: a million events take seconds once, and what came of it is kept
in the user's cache. What a person sees meanwhile is made of lines taken here and there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from phalanx.run.directory import RunDirectory
from phalanx.run.events import WriterOrder, parse
from phalanx.watch.saved_states import Place, keep, kept, place_of
from phalanx.watch.state import LOSS, RunState

_CHUNK = 4 * 2**20
_LONG = 16 * 2**20  # bytes of events that are not read before something is shown
_WORTH_KEEPING = 8 * 2**20
_LONGEST_LINE = 2**20
_PARSED_STEPS = 8000  # of what is there at the beginning
_PREVIEW_LINES = 600
_PREVIEW_END = 2**18
_STEP = b'"kind":"step"'
_LOSS = b'"loss":'


class _File(NamedTuple):
    path: Path
    size: int
    inode: int


class RunReader:
    """Follows one run."""

    def __init__(self, run: RunDirectory, *, is_kept: bool = True) -> None:
        """`is_kept`: what was read is remembered in the user's cache."""
        self.run = run
        self._is_kept = is_kept
        self.version = 0
        """Grows with everything that was read."""
        self._forget()

    def _forget(self) -> None:
        self._state = RunState()
        self._preview: RunState | None = None
        self._places: dict[str, Place] = {}
        self._strides: dict[str, int] = {}
        self._skipped: dict[str, int] = {}
        self._order = WriterOrder(self.run.path)
        self._read_bytes = 0
        self._is_begun = False

    @property
    def state(self) -> RunState:
        """What is known: all that was read, or at first a rough picture of a long run."""
        return self._preview if self._preview is not None else self._state

    @property
    def is_rough(self) -> bool:
        return self._preview is not None

    @property
    def share_read(self) -> float:
        """How much of what is there has been read."""
        there = sum(file.size for file in self._files())
        done = sum(place.offset for place in self._places.values())
        return min(1.0, done / there) if there else 1.0

    def read_all(self) -> RunState:
        """Read until nothing is left."""
        while self.read(budget_s=60.0):
            pass
        return self.state

    def read(self, *, budget_s: float = 0.25) -> bool:
        """Read what is there, for so long; whether something was left over."""
        deadline = time.monotonic() + budget_s
        files = self._files()
        if not self._is_begun:
            self._begin(files)
        if any(self._is_replaced(file) for file in files):
            self._forget()
            self._begin(files)
        for file in files:
            while self._read_chunk(file):
                if time.monotonic() > deadline:
                    return True
        if self._preview is not None:
            self._preview = None
            self.version += 1
        if self._is_kept and self._read_bytes > _WORTH_KEEPING:
            self._read_bytes = 0
            with suppress(OSError):
                keep(self.run.path, self._state, self._places)
        return False

    def _files(self) -> list[_File]:
        """The supervisor's first: it says when ranks start."""
        found = []
        with suppress(OSError), os.scandir(self.run.events) as entries:
            for entry in entries:
                if entry.name.endswith(".jsonl") and entry.is_file():
                    about = entry.stat()
                    found.append(_File(Path(entry.path), about.st_size, about.st_ino))
        return sorted(found, key=lambda file: (file.path.stem != "supervisor", file.path.name))

    def _begin(self, files: list[_File]) -> None:
        self._is_begun = True
        remembered = kept(self.run.path) if self._is_kept else None
        if remembered is not None:
            self._state, self._places = remembered
            self.version += 1
        left = sum(f.size - self._offset(f) for f in files)
        for file in files:
            # A step event has about 350 bytes.
            lines = (file.size - self._offset(file)) / 350
            self._strides[file.path.name] = max(1, int(lines / _PARSED_STEPS))
        if left > _LONG and remembered is None:
            self._preview = _look_here_and_there(files)
            self.version += 1

    def _offset(self, file: _File) -> int:
        place = self._places.get(file.path.name)
        return place.offset if place is not None else 0

    def _is_replaced(self, file: _File) -> bool:
        place = self._places.get(file.path.name)
        return place is not None and (file.size < place.offset or file.inode != place.inode)

    def _read_chunk(self, file: _File) -> bool:
        """Whether there was something."""
        name, offset = file.path.name, self._offset(file)
        if file.size <= offset:
            return False
        try:
            with file.path.open("rb") as stream:
                stream.seek(offset)
                chunk = stream.read(_CHUNK)
        except OSError:
            return False
        whole = chunk.rfind(b"\n") + 1
        if whole == 0:
            if len(chunk) < _LONGEST_LINE:
                return False  # half a line: the rest comes
            whole = len(chunk)  # no event is so long
        self._take(name, chunk[:whole])
        self._places[name] = place_of(file.inode, offset + whole, chunk[:whole])
        self._read_bytes += whole
        self.version += 1
        return True

    def _take(self, name: str, chunk: bytes) -> None:
        stride = self._strides.get(name, 1) if len(chunk) > 2**16 else 1
        skipped = self._skipped.get(name, 0)
        state = self._state
        low, high = float("inf"), float("-inf")
        newest = b""
        for line in chunk.splitlines():
            is_step = line.find(_STEP, 0, 64) >= 0
            if is_step and skipped < stride - 1:
                skipped += 1
                newest = line
                state.num_events += 1
                begin = line.find(_LOSS)
                if begin >= 0:
                    try:
                        loss = float(line[begin + 7 : line.find(b",", begin)])
                    except ValueError:
                        continue  # null, of a script
                    low = min(low, loss)
                    high = max(high, loss)
                continue
            if is_step:
                self._widen(low, high)
                low, high = float("inf"), float("-inf")
                skipped, newest = 0, b""
            self._parse(name, line)
        if newest:  # where the run stands is never left out
            state.num_events -= 1
            self._parse(name, newest)
        self._widen(low, high)
        self._skipped[name] = skipped

    def _widen(self, low: float, high: float) -> None:
        """How far the loss went in steps that were not parsed."""
        series = self._state.series.get(LOSS)
        if series is not None and low <= high < float("inf"):
            series.take_part(low, high)

    def _parse(self, name: str, line: bytes) -> None:
        event = parse(line)
        if event is None:
            self._state.num_damaged += bool(line.strip())
        elif self._order.is_in_place(name, event):
            self._state.take(event)


def _look_here_and_there(files: list[_File]) -> RunState:
    """A rough picture: the beginning, the end, and lines between them."""
    state = RunState()
    for file in files:
        with suppress(OSError), file.path.open("rb") as stream:
            for line in _lines_of(stream.fileno(), file.size):
                event = parse(line)
                if event is not None:
                    state.take(event)
    return state


def _lines_of(descriptor: int, size: int) -> Iterator[bytes]:
    if size <= 2 * _PREVIEW_END:
        yield from os.pread(descriptor, size, 0).splitlines()
        return
    yield from os.pread(descriptor, 2**15, 0).splitlines()[:-1]
    between = size - _PREVIEW_END - 2**15
    for number in range(1, _PREVIEW_LINES):
        piece = os.pread(descriptor, 2**13, 2**15 + between * number // _PREVIEW_LINES)
        _, _, rest = piece.partition(b"\n")
        line, end, _ = rest.partition(b"\n")
        if end:
            yield line
    yield from os.pread(descriptor, _PREVIEW_END, size - _PREVIEW_END).splitlines()[1:]
