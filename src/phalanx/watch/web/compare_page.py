"""Several runs side by side: a curve over steps or wall time, figures, differences of the jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nicegui import ui

from phalanx.errors import format_seconds, printable
from phalanx.watch.differences import job_differences
from phalanx.watch.plot import short_number
from phalanx.watch.series import Point
from phalanx.watch.state import LOSS
from phalanx.watch.watched_run import WatchedRun
from phalanx.watch.web.access import Session
from phalanx.watch.web.charts import Line, curve_chart
from phalanx.watch.web.library import OpenRun
from phalanx.watch.web.theme import (
    SMOOTHING,
    Chart,
    axis_toggle,
    card,
    every,
    frame,
    smoothing_slider,
    table,
)

MOST_RUNS = 12


@dataclass
class _Look:
    names: list[str]
    points: list[Point]
    start_s: float
    facts: dict[str, str]


def _look(watched: WatchedRun, curve: str) -> _Look:
    state, best = watched.state, watched.best_metric
    names = [name for name, one in state.series.items() if len(one)]
    series = state.series.get(curve)
    elapsed, loss = watched.elapsed_s(), state.series.get(LOSS)
    facts = {
        "state": watched.status(),
        "step": f"{state.step:,}" if state.step is not None else "",
        "loss": short_number(loss.last.value) if loss is not None and loss.last else "",
        "best": f"{printable(best[0])} {short_number(best[1])}" if best is not None else "",
        "time": format_seconds(elapsed) if elapsed is not None else "",
        "samples/s": f"{watched.speed().samples_per_s or 0:,.0f}",
        "restarts": str(state.num_restarts),
    }
    points = series.points() if series is not None else []
    return _Look(names, points, state.first_s or 0.0, facts)


class ComparePage:
    """What one browser sees of a comparison."""

    def __init__(self, opened: Sequence[OpenRun], session: Session) -> None:
        self._opened = list(opened)
        self._labels = _labels([one.watched for one in opened])
        self._is_by_time, self._smoothing, self._curve = False, SMOOTHING, LOSS
        self._facts: Any = None
        with frame("comparison", session):
            ui.label(f"comparison of {len(opened)} runs").classes("px-name")
            with ui.row().classes("items-center gap-4 w-full"):
                self._select = ui.select([LOSS], value=LOSS, on_change=self._choose)
                self._select.props("dense outlined").classes("w-56").mark("curve")
                axis_toggle(lambda is_by_time: self._set(is_by_time=is_by_time))
                smoothing_slider(lambda weight: self._set(smoothing=weight))
            with ui.column().classes("px-card w-full"):
                self._chart = Chart(curve_chart([]), style="height: 380px")
            self._table_box = ui.column().classes("w-full gap-4")
        every(1.5, self.refresh)

    def _set(self, *, is_by_time: bool | None = None, smoothing: float | None = None) -> Any:
        self._is_by_time = self._is_by_time if is_by_time is None else is_by_time
        self._smoothing = self._smoothing if smoothing is None else smoothing
        return self.refresh()

    def _choose(self) -> Any:
        self._curve = str(self._select.value or LOSS)
        return self.refresh()

    async def refresh(self) -> None:
        """Look at all of them again, and draw what has changed."""
        curve = self._curve
        looks = [
            await asyncio.to_thread(one.read, lambda watched: _look(watched, curve))
            for one in self._opened
        ]
        names = sorted({name for look in looks for name in look.names})
        if names and names != self._select.options:
            self._select.set_options(names, value=curve if curve in names else names[0])
        lines = [
            Line(label, look.points, is_by_time=self._is_by_time, start_s=look.start_s)
            for label, look in zip(self._labels, looks, strict=True)
            if look.points
        ]
        self._chart.show(curve_chart(lines, smoothing=self._smoothing))
        facts = [look.facts for look in looks]
        if facts != self._facts:
            self._facts = facts
            differences = await asyncio.to_thread(
                job_differences, [one.watched for one in self._opened]
            )
            self._draw_tables(facts, differences)

    def _draw_tables(
        self, facts: list[dict[str, str]], differences: list[tuple[str, list[str]]]
    ) -> None:
        self._table_box.clear()
        rows = [(name, [fact[name] for fact in facts]) for name in facts[0]]
        with self._table_box:
            with card("figures"):
                self._table(rows).mark("figures")
            with card("differences of the jobs"):
                if differences:
                    self._table(differences).mark("differences")
                else:
                    ui.label("the jobs are the same").classes("px-soft")

    def _table(self, rows: Sequence[tuple[str, list[str]]]) -> ui.table:
        labels = {"key": "", **{f"c{n}": label for n, label in enumerate(self._labels)}}
        data = [
            {"key": printable(key), **{f"c{n}": printable(text) for n, text in enumerate(values)}}
            for key, values in rows
        ]
        return table(data, labels, key="key").props("wrap-cells")


def _labels(runs: Sequence[WatchedRun]) -> list[str]:
    """Names of the runs; of those that have the same one with their folder."""
    names = [one.name for one in runs]
    return [
        printable(
            one.name if names.count(one.name) == 1 else f"{one.run.path.parent.name}/{one.name}"
        )
        for one in runs
    ]
