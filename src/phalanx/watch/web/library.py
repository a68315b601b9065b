"""The runs that are served: found in folders, summarised for the list, opened when somebody
looks."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from phalanx.run.directory import LATEST, RunDirectory
from phalanx.watch.summary import Summaries, Summary
from phalanx.watch.watched_run import WatchedRun

T = TypeVar("T")

_MOST_OPEN = 24
_LOOK_EVERY_S = 2.0
_MARKS = ("plan.json", "launch.json")


@dataclass
class OpenRun:
    """A run that pages look at; they share what was read."""

    id: str
    watched: WatchedRun
    lock: threading.Lock = field(default_factory=threading.Lock)
    _read_s: float = 0.0

    def read(self, make: Callable[[WatchedRun], T], *, budget_s: float = 0.2) -> T:
        """Read what is new, and make something of it."""
        with self.lock:
            if time.monotonic() - self._read_s > 0.3 or self.watched.reader.is_rough:
                self.watched.reader.read(budget_s=budget_s)
                self._read_s = time.monotonic()
            return make(self.watched)


class Library:
    """All runs of some folders."""

    def __init__(self, roots: Sequence[Path], runs: Sequence[RunDirectory | WatchedRun]) -> None:
        """`roots` are folders of runs, `runs` single ones."""
        self._roots = [root.resolve() for root in roots]
        self._single = list(runs)
        self._open: OrderedDict[str, OpenRun] = OrderedDict()
        self._runs: dict[str, RunDirectory] = {}
        self._summaries = Summaries()
        self._looked_s = float("-inf")
        self._lock = threading.Lock()
        for one in runs:
            if isinstance(one, WatchedRun):
                self._open[run_id(one.run.path)] = OpenRun(run_id(one.run.path), one)

    def runs(self) -> dict[str, RunDirectory]:
        """All runs by their id; folders are looked at every few seconds."""
        with self._lock:
            if time.monotonic() - self._looked_s > _LOOK_EVERY_S:
                self._looked_s = time.monotonic()
                found = [one.run if isinstance(one, WatchedRun) else one for one in self._single]
                found += [run for root in self._roots for run in _runs_in(root)]
                self._runs = {run_id(run.path): run for run in found}
            return self._runs

    def summaries(self, *, budget_s: float = float("inf")) -> tuple[list[Summary], bool]:
        """Of every run, the newest first, and whether all were looked at. When the time is spent,
        the others are as they were last seen, or only their names."""
        runs = self.runs()
        deadline = time.monotonic() + budget_s
        found, is_whole = [], True
        with self._lock:
            # Those that have changed of late first: they are what people look for.
            for run in sorted(runs.values(), key=_changed_s, reverse=True):
                is_late = time.monotonic() > deadline
                one = self._summaries.of(run, is_hurried=is_late)
                is_whole = is_whole and not is_late
                changed = _changed_s(run)
                bare = Summary(str(run.path), run.name, "", started_s=changed, changed_s=changed)
                found.append(one or bare)
            if is_whole:
                self._summaries.keep()
        return sorted(found, key=lambda one: one.started_s, reverse=True), is_whole

    def open(self, identifier: str) -> OpenRun | None:
        """The run of that id; None when there is none."""
        known = self._open.get(identifier)
        if known is None:
            run = self.runs().get(identifier)
            if run is None:
                return None
            known = OpenRun(identifier, WatchedRun(run))
        with self._lock:
            self._open[identifier] = known
            self._open.move_to_end(identifier)
            while len(self._open) > _MOST_OPEN:
                self._open.popitem(last=False)
        return known


def run_id(path: Path) -> str:
    """What stands for a run in an address: nothing of its name, which may be anything."""
    return hashlib.sha256(str(path).encode(errors="surrogateescape")).hexdigest()[:12]


def _changed_s(run: RunDirectory) -> float:
    try:
        return run.path.stat().st_mtime
    except OSError:
        return 0.0


def _runs_in(root: Path) -> list[RunDirectory]:
    found = []
    with suppress(OSError), os.scandir(root) as entries:
        for entry in entries:
            if entry.name == LATEST or entry.is_symlink() or not entry.is_dir():
                continue
            if any(os.path.isfile(f"{entry.path}/{name}") for name in _MARKS):  # noqa: PTH113
                found.append(RunDirectory(Path(entry.path)))
    return found
