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
from phalanx.watch.web.charts import Line, curve_chart
from phalanx.watch.web.library import OpenRun
from phalanx.watch.web.theme import card, every, frame

MOST_RUNS = 12


@dataclass
class _Look:
    names: list[str]
    curves: dict[str, list[Point]]
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
    return _Look(names, {curve: points}, state.first_s or 0.0, facts)


class ComparePage:
    """What one browser sees of a comparison."""

    def __init__(self, opened: Sequence[OpenRun], session: dict[str, Any]) -> None:
        self._opened = list(opened)
        self._labels = _labels([one.watched for one in opened])
        self._is_by_time, self._smoothing, self._curve = False, 0.6, LOSS
        self._drawn: Any = None
        self._facts: Any = None
        with frame("comparison", session):
            ui.label(f"comparison of {len(opened)} runs").classes("px-name")
            with ui.row().classes("items-center gap-4 w-full"):
                self._select = ui.select([LOSS], value=LOSS, on_change=self._choose)
                self._select.props("dense outlined").classes("w-56").mark("curve")
                ui.toggle(
                    {False: "steps", True: "wall time"},
                    value=False,
                    on_change=lambda e: self._set(is_by_time=e.value),
                ).props("dense no-caps unelevated toggle-color=primary").mark("axis")
                ui.label("smoothing").classes("px-soft text-caption")
                ui.slider(
                    min=0,
                    max=0.99,
                    step=0.01,
                    value=self._smoothing,
                    on_change=lambda e: self._set(smoothing=float(e.value)),
                ).props("dense label").classes("w-40")
            with ui.column().classes("px-card w-full"):
                self._chart = ui.echart(curve_chart([])).classes("w-full").style("height: 380px")
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
        options = curve_chart(
            [
                Line(label, look.curves[curve], is_by_time=self._is_by_time, start_s=look.start_s)
                for label, look in zip(self._labels, looks, strict=True)
                if look.curves.get(curve)
            ],
            smoothing=self._smoothing,
        )
        if options != self._drawn:
            self._drawn = options
            self._chart.options.clear()
            self._chart.options.update(options)
            self._chart.update()
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

    def _table(self, rows: Sequence[tuple[str, list[str]]]) -> Any:
        columns = [{"name": "key", "label": "", "field": "key", "align": "left"}]
        columns += [
            {"name": f"c{n}", "label": label, "field": f"c{n}", "align": "left"}
            for n, label in enumerate(self._labels)
        ]
        data = [
            {"key": printable(key), **{f"c{n}": printable(text) for n, text in enumerate(values)}}
            for key, values in rows
        ]
        return (
            ui.table(rows=data, columns=columns, row_key="key")
            .props("flat dense wrap-cells")
            .classes("w-full")
        )


def _labels(runs: Sequence[WatchedRun]) -> list[str]:
    """Names of the runs; of those that have the same one with their folder."""
    names = [one.name for one in runs]
    return [
        printable(
            one.name if names.count(one.name) == 1 else f"{one.run.path.parent.name}/{one.name}"
        )
        for one in runs
    ]
