"""One line about a run, from the ends of its files: quick enough for a thousand of them, and kept
in the user's cache for those that have not changed."""

from __future__ import annotations

import csv
import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from phalanx.run.cache import cache_folder
from phalanx.run.directory import RunDirectory, write_atomic
from phalanx.run.event_kinds import AttemptStarted, FindingMade, Outcome, RankStarted, Step
from phalanx.run.events import Event, parse
from phalanx.run.plan_record import choice_in, read_plan_record
from phalanx.run.reading import read_end, read_json
from phalanx.watch.watched_run import is_running

T = TypeVar("T")
_FORMAT = 1
_END = 2**14
_SMALL = 2**18  # bytes of the supervisor's file that are read whole, for every attempt
_MOST_ROWS = 2**20  # bytes of results.csv
_IN_CACHE = 20_000


@dataclass
class Summary:
    """What a list of runs shows."""

    path: str
    name: str
    status: str
    kind: str = "train"
    recipe: str = ""
    step: int | None = None
    total_steps: int | None = None
    loss: float | None = None
    metric: str = ""
    best: float | None = None
    device: str = ""
    ranks: int | None = None
    rank_hours: float = 0.0
    restarts: int = 0
    findings: int = 0
    started_s: float = 0.0
    changed_s: float = 0.0

    @property
    def progress(self) -> float | None:
        if not self.total_steps or self.step is None:
            return None
        return min(1.0, self.step / self.total_steps)

    @property
    def gpu_hours(self) -> float | None:
        return self.rank_hours if self.device == "cuda" else None


class Summaries:
    """Summaries of many runs; those whose files have not changed are not read again."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[list[Any], Summary]] = {}
        self._is_loaded = False
        self._is_new = False

    def of(self, run: RunDirectory, *, is_hurried: bool = False) -> Summary | None:
        """Of one run, as it is now; `is_hurried`: of one that is not known yet None."""
        self._load()
        key = str(run.path)
        known = self._known.get(key)
        if is_hurried:
            return known[1] if known is not None else None
        mark = _mark(run)
        if known is None or known[0] != mark:
            known = mark, summarise(run)
            self._known[key] = known
            self._is_new = True
        found = known[1]
        if found.status in ("running", "gone"):  # whether its command lives no file says
            found.status = "running" if is_running(run) else "gone"
            if found.status == "running":
                now = time.time()
                hours = (now - found.changed_s) / 3600 * (found.ranks or 0)
                return Summary(**{**asdict(found), "rank_hours": found.rank_hours + hours})
        return found

    def _load(self) -> None:
        if self._is_loaded:
            return
        self._is_loaded = True
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            record = json.loads(_file().read_text(encoding="utf-8"))
            if record["format"] == _FORMAT:
                for key, (mark, fields) in record["runs"].items():
                    self._known[key] = mark, Summary(**fields)

    def keep(self) -> None:
        """Remember them for the next time."""
        if not self._is_new:
            return
        self._is_new = False
        newest = sorted(self._known.items(), key=lambda item: item[1][1].changed_s)[-_IN_CACHE:]
        runs = {key: [mark, asdict(found)] for key, (mark, found) in newest}
        with suppress(OSError):
            _file().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomic(_file(), json.dumps({"format": _FORMAT, "runs": runs}))


def _file() -> Path:
    return cache_folder("watch") / "runs.json"


def _mark(run: RunDirectory) -> list[Any]:
    """By which a run is known to be unchanged."""
    mark: list[Any] = []
    with suppress(OSError), os.scandir(run.events) as entries:
        for entry in entries:
            about = entry.stat()
            mark.append([entry.name, about.st_size, about.st_mtime_ns])
    for path in (run.plan_file, run.results_file):
        with suppress(OSError):
            mark.append([path.name, path.stat().st_mtime_ns])
    return sorted(mark)


def summarise(run: RunDirectory) -> Summary:
    """Read the ends of a run's files."""
    plan = read_plan_record(run)
    found = Summary(str(run.path), run.name, "gone")
    found.kind = "train" if plan else "launch"
    found.recipe = _recipe(run)
    found.device = str(choice_in(plan, "device") or "")
    found.metric = str(choice_in(plan, "metric") or "")
    total, ranks = choice_in(plan, "total_steps"), choice_in(plan, "ranks")
    found.total_steps = total if isinstance(total, int) else None
    found.ranks = ranks if isinstance(ranks, int) else None
    with suppress(OSError):
        found.started_s = found.changed_s = run.path.stat().st_mtime
    for event in _end(run.events / "rank-0.jsonl"):
        _take(found, event)
    _supervisor(run, found)
    found.best = _best(run, found.metric, str(choice_in(plan, "metric_mode") or "max"))
    return found


def _take(found: Summary, event: Event) -> None:
    found.changed_s = max(found.changed_s, event.time_s)
    if isinstance(event.body, Step):
        found.step = _newer(event.body.step, found.step)
        found.loss = _newer(event.body.loss, found.loss)
        found.total_steps = _newer(event.body.total_steps, found.total_steps)


def _newer(new: T | None, old: T | None) -> T | None:
    return old if new is None else new


def _supervisor(run: RunDirectory, found: Summary) -> None:
    path = run.events / "supervisor.jsonl"
    with suppress(OSError):
        size = path.stat().st_size
        events = _end(path, max(_END, size) if size <= _SMALL else _END)
        if size > _SMALL:
            events = [*_begin(path), *events]
        began, ranks, is_ended = 0.0, found.ranks or 1, False
        for event in events:
            _take(found, event)
            match event.body:
                case AttemptStarted(ranks=started):
                    if not began:
                        found.started_s = event.time_s
                    elif not is_ended:
                        found.rank_hours += ranks * (event.time_s - began) / 3600
                        found.restarts += 1
                    began, is_ended = event.time_s, False
                    found.status = "gone"
                    found.ranks = ranks = started
                case RankStarted(device=device):
                    found.device = "cuda" if "cuda" in device else found.device
                case FindingMade():
                    found.findings += 1
                case Outcome() as end:
                    found.status, is_ended = end.status[:20], True
                    found.rank_hours += ranks * (event.time_s - began) / 3600 if began else 0.0
                    found.findings += len(end.findings)
                    found.step = _newer(end.step, found.step)
        if not is_ended and began:
            found.rank_hours += ranks * max(0.0, found.changed_s - began) / 3600


def _events(data: bytes) -> list[Event]:
    events = (parse(line) for line in data.splitlines())
    return [event for event in events if event is not None]


def _end(path: Path, size: int = _END) -> list[Event]:
    return _events(read_end(path, size))


def _begin(path: Path) -> list[Event]:
    with path.open("rb") as file:
        return _events(file.read(2048))


def _recipe(run: RunDirectory) -> str:
    """Without a YAML parser, which takes milliseconds: the key stands where a line begins."""
    with suppress(OSError, UnicodeDecodeError):
        for line in run.job_file.read_text(encoding="utf-8").splitlines():
            if line.startswith("recipe:"):
                return line.partition(":")[2].strip().strip("'\"")[:200]
    with suppress(KeyError, TypeError):
        words = read_json(run.launch_file)["command"]
        return next((str(word) for word in words[2:] if str(word).endswith(".py")), "")[:200]
    return ""


def _best(run: RunDirectory, metric: str, mode: str) -> float | None:
    """Of the rows of results.csv."""
    with suppress(OSError, csv.Error, UnicodeDecodeError):
        if run.results_file.stat().st_size > _MOST_ROWS:
            return None
        with run.results_file.open(newline="", encoding="utf-8") as file:
            values = []
            for row in csv.DictReader(file):
                with suppress(TypeError, ValueError):
                    values.append(float(row.get(metric) or ""))
            return (min if mode == "min" else max)(values, default=None)
    return None
