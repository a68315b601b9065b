"""One run that is watched: its events beside its plan, and the figures that follow from both."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.run.directory import RunDirectory
from phalanx.run.lock import is_held, read_holder
from phalanx.run.plan_record import choice_in, without_sections
from phalanx.run.reading import read_json
from phalanx.watch.reader import RunReader
from phalanx.watch.state import LOSS, RunState

_RECENT = 20  # points of a curve that speed is taken from


@dataclass(frozen=True)
class Speed:
    """How fast a run is."""

    samples_per_s: float | None
    steps_per_s: float | None
    mfu: float | None
    """Share of what the devices could compute at most; None where that is not known."""


class WatchedRun:
    """A run directory that is read again and again."""

    def __init__(
        self,
        run: RunDirectory,
        *,
        is_kept: bool = True,
        clock: Callable[[], float] = time.time,
        is_alive: Callable[[], bool] | None = None,
    ) -> None:
        """`is_alive`: whether its command lives, where its lock cannot say so."""
        self.run = run
        self._is_alive = is_alive or (lambda: is_running(run))
        self.clock = clock
        self.reader = RunReader(run, is_kept=is_kept)
        self._files: dict[Path, tuple[int, dict[str, Any]]] = {}

    @property
    def state(self) -> RunState:
        return self.reader.state

    @property
    def name(self) -> str:
        return self.run.name

    @property
    def plan(self) -> dict[str, Any]:
        return without_sections(self._json(self.run.plan_file))

    @property
    def launched(self) -> dict[str, Any]:
        return self._json(self.run.launch_file)

    @property
    def is_script(self) -> bool:
        return not self.plan

    def _json(self, path: Path) -> dict[str, Any]:
        """A file of the run, read again when it has changed; empty when it cannot be."""
        try:
            changed = path.stat().st_mtime_ns
        except OSError:
            return {}
        if self._files.get(path, (None,))[0] != changed:
            self._files[path] = changed, read_json(path)
        return self._files[path][1]

    def planned(self, name: str) -> Any:
        """A choice of the plan; None where there is none."""
        return choice_in(self.plan, name)

    def planned_number(self, name: str) -> float | None:
        value = self.planned(name)
        return float(value) if isinstance(value, int | float) and value else None

    def status(self) -> str:
        """running, finished, stopped, failed, or gone: its command ended without a word."""
        said = self.state.outcome.get("status")
        if said:
            return str(said)
        return "running" if self._is_alive() else "gone"

    @property
    def total_steps(self) -> int | None:
        planned = self.planned_number("total_steps")
        return int(planned) if planned else self.state.total_steps

    def progress(self) -> float | None:
        """Share of the steps that are done."""
        total, step = self.total_steps, self.state.step
        if not total or step is None:
            return None
        return min(1.0, step / total)

    def elapsed_s(self) -> float | None:
        """Since the newest attempt began to the last word, or until now."""
        state = self.state
        if state.first_s is None or state.last_s is None:
            return None
        end = self.clock() if self.status() == "running" else state.last_s
        return max(0.0, end - state.first_s)

    def left_s(self) -> float | None:
        """By the speed of late."""
        total, step, rate = self.total_steps, self.state.step, self.speed().steps_per_s
        if not total or step is None or not rate:
            return None
        return max(0.0, (total - step) / rate)

    def speed(self) -> Speed:
        series = self.state.series
        rates = series.get("speed/samples_per_s")
        last = rates.last if rates is not None else None
        samples = last.value if last is not None else None
        points = series[LOSS].points()[-_RECENT:] if LOSS in series else []
        steps = None
        if len(points) > 1 and points[-1].time_s > points[0].time_s:
            steps = (points[-1].step - points[0].step) / (points[-1].time_s - points[0].time_s)
        return Speed(samples, steps if steps and steps > 0 else None, self._mfu(samples))

    def _mfu(self, samples_per_s: float | None) -> float | None:
        forecast = self.plan.get("forecast")
        if not isinstance(forecast, dict) or samples_per_s is None:
            return None
        flops, peak = forecast.get("flops_per_sample"), forecast.get("peak_flops")
        ranks = self.planned_number("ranks") or 1
        if not isinstance(flops, int | float) or not isinstance(peak, int | float) or peak <= 0:
            return None
        return flops * samples_per_s / (peak * ranks) if flops > 0 else None

    @property
    def has_gpus(self) -> bool:
        if self.plan:
            return bool(self.planned("device") == "cuda")
        return any("cuda" in rank.device for rank in self.state.ranks.by_number.values())

    def device_hours(self) -> float:
        """Hours of ranks, which are hours of GPUs where there are any."""
        now = self.clock() if self.status() == "running" else None
        return self.state.rank_seconds(now) / 3600

    @property
    def best_metric(self) -> tuple[str, float, int | None] | None:
        """(name, value, step) of the best evaluation; of a script the newest one."""
        name, state = self.planned("metric"), self.state
        if state.best and name in state.best["metrics"]:
            return str(name), state.best["metrics"][name], state.best["step"]
        if state.metrics:
            first = next(iter(state.metrics))
            return first, state.metrics[first], None
        return None


def is_running(run: RunDirectory) -> bool:
    """Whether a command holds the run. Of one that runs here its process is looked at: the lock is
    not touched, which somebody may want to take at that moment."""
    holder = read_holder(run)
    return (holder is not None and holder.is_alive()) or is_held(run)
