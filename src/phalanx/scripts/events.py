"""Turns what a launched script prints, and the results.csv it writes, into events of its run."""

from __future__ import annotations

import time
from pathlib import Path

from phalanx.run.event_kinds import Evaluate, Step
from phalanx.run.events import EventWriter
from phalanx.scripts.output import OutputReader, Reading, read_results

_PROGRESS_EVERY_S = 1.0  # a bar without a loss changes ten times a second
_LOOK_EVERY_S = 2.0
_LARGEST_RESULTS = 2**24


class ScriptEvents:
    """Writes `step` and `evaluate` events of one attempt. With several ranks that print the lowest
    one counts: most scripts print on rank 0, some on the last."""

    def __init__(self, events: EventWriter, results: str, run: Path) -> None:
        self._events = events
        self._readers: dict[int, OutputReader] = {}
        self._speaker: int | None = None
        self._last_progress_s = 0.0
        self._last_step: int | None = None
        self._files = _ResultFiles(results, run)
        self.has_progress = False
        """Whether a step or a loss was seen in this attempt."""
        self.has_loss = False
        self.step: int | None = None

    def take(self, rank: int, text: str) -> None:
        """Read one line of a rank."""
        if self._speaker is not None and rank > self._speaker:
            return
        readings = self._readers.setdefault(rank, OutputReader()).take(text)
        if readings:
            self._speaker = rank
        self._write_all(readings, "output")

    def look(self) -> None:
        """Read what files have grown by; cheap when asked often."""
        self._write_all(self._files.read(), "file")

    def end(self) -> None:
        """Read what is left when the ranks are gone."""
        reader = self._readers.get(self._speaker) if self._speaker is not None else None
        self._files.look_now()
        self._write_all(reader.end() if reader else [], "output")
        self.look()

    def _write_all(self, readings: list[Reading], source: str) -> None:
        for reading in readings:
            self._write(reading, source)

    def _write(self, reading: Reading, source: str) -> None:
        self.has_progress = self.has_progress or bool(reading.step) or reading.loss is not None
        self.has_loss = self.has_loss or reading.loss is not None
        if reading.step is not None:
            self.step = reading.step
        if self._is_news(reading):
            self._events.write(
                Step(
                    step=reading.step,
                    epoch=reading.epoch,
                    loss=reading.loss,
                    terms={},
                    lr=reading.lr,
                    grad_norm=reading.grad_norm,
                    total_steps=reading.total,
                    source=source,
                )
            )
        if reading.metrics:
            self._events.write(
                Evaluate(
                    step=reading.step,
                    epoch=reading.epoch,
                    metrics=reading.metrics,
                    is_best=False,
                    source=source,
                )
            )

    def _is_news(self, reading: Reading) -> bool:
        """A loss, of a bar once for each step: between two steps it shows that of the next one
        beside the number of the last. Progress without a loss now and then."""
        if reading.bar is None:
            return reading.loss is not None
        now = time.monotonic()
        is_soon = now - self._last_progress_s < _PROGRESS_EVERY_S
        if not reading.step or reading.step == self._last_step:
            return False
        if reading.loss is None and is_soon:
            return False
        self._last_step, self._last_progress_s = reading.step, now
        return True


class _ResultFiles:
    """Files of results that appear or grow while the script runs; older rows are left alone."""

    def __init__(self, pattern: str, run: Path) -> None:
        self._pattern = pattern
        self._run = run
        self._next_s = 0.0
        self._rows: dict[Path, int] = {path: self._count(path) for path in self._find()}

    def look_now(self) -> None:
        self._next_s = 0.0

    def read(self) -> list[Reading]:
        now = time.monotonic()
        if now < self._next_s:
            return []
        self._next_s = now + _LOOK_EVERY_S
        found: list[Reading] = []
        for path in self._find():
            rows = read_results(self._text(path))
            before = self._rows.get(path, 0)
            found += rows[before if before <= len(rows) else 0 :]
            self._rows[path] = len(rows)
        return found

    def _find(self) -> list[Path]:
        try:
            found = [path.resolve() for path in sorted(Path().glob(self._pattern))]
        except (OSError, ValueError, NotImplementedError):  # an absolute or empty pattern
            return []
        return [path for path in found if self._run not in path.parents]

    def _count(self, path: Path) -> int:
        return len(read_results(self._text(path)))

    def _text(self, path: Path) -> str:
        try:
            if path.stat().st_size > _LARGEST_RESULTS:
                return ""
            return path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
