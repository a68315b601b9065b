"""Where each rank is: numbers that its training thread writes into memory shared with the process
that started it, as it goes from one part of the loop to the next.

Nothing is sent and nothing is waited for: a beat is a few stores, some hundred nanoseconds. Whoever
reads looks at all ranks of the machine a few times a second (engine/launcher/agent.py) and passes
on what it saw as `Beat`s.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum

VARIABLE = "PHALANX_HEARTBEAT"
"""For a rank that is a process of its own: the descriptor of the board and its place on it."""


class Phase(IntEnum):
    """What a rank does, in the large; each has a limit of its own."""

    START = 0
    COMPILE = 1
    STEP = 2
    EVALUATE = 3
    SAVE = 4
    EXPORT = 5
    OVER = 6


class Part(IntEnum):
    """What a rank does within a step."""

    NONE = 0
    DATA = 1
    """Fetches its samples."""
    AGREE = 2
    """Between two steps; may wait for the others."""
    FORWARD = 3
    BACKWARD = 4
    """Also exchanges gradients, so it may wait for the others."""
    UPDATE = 5
    READ = 6
    """Reads the loss to log it: waits until the device has done all steps that it was given, and
    for the others."""


_TIME, _PHASE, _PART, _STEP, _FIRST, _SUMS = range(6)
_CELLS = _SUMS + len(Part)
_BYTES = 8 * _CELLS


@dataclass(frozen=True)
class Beat:
    """Where a rank is, as seen by the process that started it."""

    rank: int
    silent_s: float
    """How long it has not moved, counted while that process itself ran."""
    phase: Phase
    part: Part
    step: int
    first_step: int
    """Steps that were done when this attempt began."""
    seconds: tuple[float, ...]
    """Time spent in each part of steps, in this attempt."""

    @property
    def place(self) -> str:
        """In words: `the forward of step 58`."""
        if self.phase is not Phase.STEP:
            return {
                Phase.START: "the start",
                Phase.COMPILE: "compiling and settling",
                Phase.EVALUATE: f"the evaluation after {self.step} steps",
                Phase.SAVE: f"saving after {self.step} steps",
                Phase.EXPORT: "the export at the end",
                Phase.OVER: "the end",
            }[self.phase]
        parts = {
            Part.DATA: "fetching data",
            Part.FORWARD: "the forward",
            Part.BACKWARD: "the backward",
            Part.UPDATE: "the update",
            Part.READ: "reading the loss",
        }
        if self.part is Part.READ:
            return f"{parts[self.part]} after {self.step} steps"
        return f"{parts.get(self.part, 'the beginning')} of step {self.step + 1}"


class Heart:
    """Written by the training thread, and by no other."""

    def __init__(self) -> None:
        self._cells: memoryview[float] = memoryview(bytearray(_BYTES)).cast("d")
        self._part = int(Part.NONE)
        self._since = time.monotonic()

    def write_to(self, cells: memoryview[float]) -> None:
        """From here on somebody looks."""
        self._cells = cells
        self.begin(Phase.START, 0)

    def write_where_asked(self) -> None:
        """In a rank that is a new process: where its environment says."""
        named = os.environ.pop(VARIABLE, None)
        if named is not None:
            descriptor, index = (int(word) for word in named.split(","))
            memory = memoryview(mmap.mmap(descriptor, 0)).cast("d")
            os.close(descriptor)
            self.write_to(memory[index * _CELLS : (index + 1) * _CELLS])

    def at(self, part: int) -> None:
        """A part of a step begins."""
        now = time.monotonic()
        cells, was = self._cells, _SUMS + self._part
        cells[was] = cells[was] + (now - self._since)
        cells[_TIME] = self._since = now
        cells[_PART] = self._part = part

    def step_done(self, done: int) -> None:
        self.at(Part.AGREE)
        self._cells[_STEP] = done

    def beat(self) -> None:
        """Something moves, within a phase that has no parts."""
        self._cells[_TIME] = time.monotonic()

    def begin(self, phase: Phase, step: int | None = None) -> None:
        """Another phase; `step`: how many are done where an attempt begins."""
        if step is not None:
            self._cells[_FIRST] = self._cells[_STEP] = step
        self.at(Part.NONE)
        self._cells[_PHASE] = phase

    @contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """Another phase for a while."""
        before = Phase(int(self._cells[_PHASE])), self._part
        self.begin(phase)
        try:
            yield
        finally:
            self.at(before[1])
            self._cells[_PHASE] = before[0]


class Board:
    """The memory that the ranks of one machine share with the process that starts them."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self._ranks = list(ranks)
        size = max(1, len(self._ranks)) * _BYTES
        self.descriptor = _open_memory()
        os.ftruncate(self.descriptor, size)
        self._cells = memoryview(mmap.mmap(self.descriptor, size)).cast("d")
        self._seen: dict[int, tuple[float, float]] = {}
        self._looked: float | None = None

    def cells(self, index: int) -> memoryview[float]:
        """The place of a rank; a fork inherits it."""
        return self._cells[index * _CELLS : (index + 1) * _CELLS]

    def environment(self, index: int) -> dict[str, str]:
        """For a rank that is a new process and inherits the descriptor."""
        return {VARIABLE: f"{self.descriptor},{index}"}

    def read(self) -> list[Beat]:
        """Where the ranks are. Silence counts only while somebody looks, a second at most for each
        look: a machine that slept, or a container that was frozen, is no rank that hangs."""
        now = time.monotonic()
        passed = 0.0 if self._looked is None else min(1.0, now - self._looked)
        self._looked = now
        return [self._beat(index, rank, passed) for index, rank in enumerate(self._ranks)]

    def _beat(self, index: int, rank: int, passed: float) -> Beat:
        cells = self.cells(index).tolist()
        before, silent = self._seen.get(rank, (cells[_TIME], 0.0))
        silent = silent + passed if cells[_TIME] == before else 0.0
        self._seen[rank] = cells[_TIME], silent
        return Beat(
            rank,
            silent,
            Phase(int(cells[_PHASE])),
            Part(int(cells[_PART])),
            int(cells[_STEP]),
            int(cells[_FIRST]),
            tuple(cells[_SUMS:]),
        )

    def close(self) -> None:
        os.close(self.descriptor)


def _open_memory() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("phalanx-heartbeat")
    with tempfile.TemporaryFile() as file:  # macOS: a file without a name, on a local disk
        return os.dup(file.fileno())
