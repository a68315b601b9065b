"""One run's page: figures, curves, system, time line, plan, logs, findings, pictures; live."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from nicegui import ui

from phalanx.watch.log_text import log_names, log_text
from phalanx.watch.rank_rows import HEADERS
from phalanx.watch.web.access import Session
from phalanx.watch.web.charts import Options
from phalanx.watch.web.library import OpenRun
from phalanx.watch.web.media_view import MediaView
from phalanx.watch.web.run_figures import Figures, Settings, clock, make_figures
from phalanx.watch.web.theme import (
    SMOOTHING,
    STATUS_COLOURS,
    Chart,
    Tile,
    axis_toggle,
    card,
    every,
    frame,
    smoothing_slider,
    table,
)

_SEVERITY = {"error": "#e5484d", "warning": "#d9930d", "note": "#4f7cff"}
_MARK_CELL = """<q-td :props="props" class="text-negative text-weight-bold">
{{ props.value }}</q-td>"""
_TABS = ("curves", "system", "time line", "plan", "logs", "findings", "pictures")


class RunPage:
    """What one browser sees of one run."""

    def __init__(self, opened: OpenRun, figures: Figures, session: Session) -> None:
        self._opened = opened
        self._settings = Settings(smoothing=SMOOTHING)
        self._tiles: dict[str, Tile] = {}
        self._charts: dict[str, Chart] = {}
        self._drawn: dict[str, Any] = {}
        self._figures = figures
        with frame(figures.name, session) as head:
            with head:
                self._badge = (
                    ui.badge("").classes("text-weight-bold q-px-sm q-py-xs").mark("status")
                )
                self._rough = ui.label("").classes("px-soft text-caption")
            ui.label(figures.name).classes("px-name")
            self._bar = ui.linear_progress(0.0, show_value=False, size="8px").props("rounded")
            self._tile_row = ui.element("div").classes("px-tiles")
            self._alarm = ui.column().classes("w-full gap-2")
            with (
                ui.tabs()
                .props("dense no-caps align=left inline-label active-color=primary")
                .classes("w-full") as self._tabs
            ):
                self._tab = {name: ui.tab(name) for name in _TABS}
            self._build_panels()
        self._tabs.on_value_change(self._draw)
        self._draw()
        every(1.0, self.refresh)

    def _build_panels(self) -> None:
        self._boxes: dict[str, Any] = {}
        with ui.tab_panels(self._tabs, value="curves", animated=False).classes(
            "w-full bg-transparent"
        ):
            for name in _TABS:
                with ui.tab_panel(name).classes("q-pa-none gap-4 column"):
                    if name == "curves":
                        self._build_controls()
                    if name == "logs":
                        self._build_logs()
                    self._boxes[name] = ui.column().classes("w-full gap-4")
        self._media = MediaView(self._boxes["pictures"], self._opened.id)
        with self._boxes["curves"]:
            self._curve_box = ui.element("div").classes("px-charts")
        with self._boxes["system"]:
            self._rank_box = ui.column().classes("w-full gap-4")
            self._system_box = ui.element("div").classes("px-charts")

    def _build_controls(self) -> None:
        with ui.row().classes("items-center gap-4 w-full q-py-xs"):
            smoothing_slider(lambda weight: self._set("smoothing", weight))
            axis_toggle(lambda is_by_time: self._set("is_by_time", is_by_time))
            ui.checkbox("log", on_change=lambda e: self._set("is_log", e.value)).props("dense")

    async def _set(self, name: str, value: Any) -> None:
        setattr(self._settings, name, value)
        await self._look()

    def _build_logs(self) -> None:
        names = log_names(self._opened.watched.run) or [""]
        with ui.row().classes("items-center gap-3 w-full q-py-xs"):
            self._log_name = ui.select(names, value=names[0], on_change=self._show_log)
            self._log_name.props("dense outlined").classes("w-48")
            self._log_word = ui.input(placeholder="search", on_change=self._show_log)
            self._log_word.props("dense outlined clearable debounce=400").classes("w-56")
            self._log_word.mark("search")
        with ui.column().classes("px-card w-full"):
            self._log = ui.label("").classes("px-log").mark("log")

    async def _show_log(self) -> None:
        name, word = self._log_name.value or "", self._log_word.value or ""
        text = await asyncio.to_thread(log_text, self._opened.watched.run, name, word)
        shown = text or ("no line has this word" if word else "nothing was printed")
        if shown != self._log.text:
            self._log.text = shown

    async def refresh(self) -> None:
        """Look again, and draw what has changed."""
        if self._tabs.value == "logs":
            names = log_names(self._opened.watched.run)
            if names and names != self._log_name.options:
                self._log_name.set_options(names, value=self._log_name.value or names[0])
            await self._show_log()
        await self._look()

    async def _look(self) -> None:
        settings = self._settings
        self._figures = await asyncio.to_thread(
            self._opened.read, lambda watched: make_figures(watched, settings)
        )
        self._draw()

    def _draw(self) -> None:
        figures = self._figures
        self._draw_head(figures)
        self._once("alarm", [said.finding for said in figures.findings], self._draw_alarm)
        drawing: dict[str, Callable[[], None]] = {
            "curves": lambda: self._draw_charts("curves", self._curve_box, figures.curves),
            "system": self._draw_system,
            "time line": self._draw_time_line,
            "plan": lambda: self._once(
                "plan", (figures.predicted, figures.choices), self._draw_plan
            ),
            "findings": lambda: self._once("findings", figures.findings, self._draw_findings),
            "pictures": lambda: self._media.draw(figures.media, figures.samples),
        }
        # Only what is seen travels to the browser.
        drawing.get(str(self._tabs.value or "curves"), lambda: None)()

    def _once(self, key: str, value: Any, draw: Callable[[], None]) -> None:
        if self._drawn.get(key) != value:
            self._drawn[key] = value
            draw()

    def _draw_head(self, figures: Figures) -> None:
        if self._badge.text != figures.status:
            self._badge.text = figures.status
            self._badge.props(f"color={STATUS_COLOURS.get(figures.status, 'grey')}")
        self._rough.text = figures.rough
        share = round(figures.share, 4) if figures.share is not None else 0.0
        if self._bar.value != share:
            self._bar.value = share
        self._bar.set_visibility(figures.share is not None)
        for name, (value, note) in figures.tiles.items():
            if name not in self._tiles:
                with self._tile_row:
                    self._tiles[name] = Tile(name)
            self._tiles[name].show(value, note)
        for name, tile in self._tiles.items():
            if name not in figures.tiles:
                tile.show("")
        counts = {"findings": len(figures.findings), "pictures": len(figures.media)}
        for name, count in counts.items():
            label = f"{name} ({count})" if count else name
            self._once(f"tab {name}", label, partial(self._relabel, name, label))

    def _relabel(self, name: str, label: str) -> None:
        self._tab[name].props["label"] = label
        self._tab[name].update()

    def _draw_alarm(self) -> None:
        """The newest error stands above everything."""
        self._alarm.clear()
        errors = [said for said in self._figures.findings if said.finding["severity"] == "error"]
        self._alarm.set_visibility(bool(errors))
        with self._alarm:
            for said in errors[:1]:
                finding_card(said.finding, said.count)

    def _draw_charts(self, group: str, box: Any, charts: dict[str, Options]) -> None:
        for title, options in charts.items():
            key = f"{group}:{title}"
            if key in self._charts:
                self._charts[key].show(options)
            else:
                with box, card(title):
                    self._charts[key] = Chart(options, classes="px-chart")

    def _draw_system(self) -> None:
        figures = self._figures
        self._once("ranks", figures.ranks, self._draw_ranks)
        if figures.heat is not None:
            self._draw_heat(figures.heat)
        self._draw_charts("system", self._system_box, figures.system)

    def _draw_ranks(self) -> None:
        self._rank_box.clear()
        self._charts.pop("heat", None)
        rows = self._figures.ranks
        with self._rank_box:
            if not rows:
                ui.label("no rank has started").classes("px-soft")
                return
            labels = {n: label for n, label in HEADERS.items() if any(row[n] for row in rows)}
            drawn = table(
                rows,
                labels,
                key="rank",
                right=HEADERS.keys() - {"device", "mark"},
                pagination=16 if len(rows) > 16 else None,
            )
            drawn.mark("ranks").add_slot("body-cell-mark", _MARK_CELL)

    def _draw_heat(self, options: Options) -> None:
        if "heat" in self._charts:
            self._charts["heat"].show(options)
            return
        height = max(170, min(900, 90 + 26 * len(options["yAxis"]["data"])))
        title = "time of a step that each rank spends on its own account"
        note = "beside the middle rank: the others wait for a red one"
        with self._rank_box, card(title, note):
            self._charts["heat"] = Chart(options, style=f"height: {height}px")
            self._charts["heat"].element.mark("heat")

    def _draw_time_line(self) -> None:
        figures, box = self._figures, self._boxes["time line"]
        value = (len(figures.notes), figures.notes[:1], figures.timeline)
        if self._drawn.get("time line") == value:
            return
        self._drawn["time line"] = value
        box.clear()
        with box:
            if figures.timeline is not None:
                with card("what happened when"):
                    ui.echart(figures.timeline).classes("w-full").style("height: 230px")
            with ui.column().classes("px-card w-full"):
                for note in figures.notes:
                    with ui.row().classes("items-baseline gap-3 no-wrap w-full"):
                        ui.label(clock(note.time_s)).classes("px-soft text-caption text-no-wrap")
                        ui.label(note.kind).classes("text-caption text-weight-bold text-no-wrap")
                        ui.label(note.text).style("overflow-wrap: anywhere")

    def _draw_plan(self) -> None:
        figures, box = self._figures, self._boxes["plan"]
        box.clear()
        with box:
            if figures.predicted:
                with card("predicted and actual"):
                    labels = {"what": "", "planned": "plan", "actual": "actual"}
                    right = ("planned", "actual")
                    table(figures.predicted, labels, key="what", right=right).mark("predicted")
            if not figures.choices:
                ui.label("a launched script has no plan").classes("px-soft")
                return
            with card("every choice and its reason"):
                labels = {"name": "", "value": "choice", "reason": "because"}
                table(figures.choices, labels, key="name").props("wrap-cells")

    def _draw_findings(self) -> None:
        box = self._boxes["findings"]
        box.clear()
        with box:
            if not self._figures.findings:
                ui.label("nothing to report").classes("px-soft")
            for said in self._figures.findings:
                finding_card(said.finding, said.count, clock(said.time_s))


def finding_card(finding: dict[str, str], count: int, when: str = "") -> None:
    """What is wrong, why, and what to do; the fix can be copied."""
    colour = _SEVERITY.get(finding["severity"], "#e5484d")
    with (
        ui.column().classes("px-card px-finding w-full").style(f"--mark: {colour}").mark("finding")
    ):
        with ui.row().classes("items-center gap-2 w-full"):
            ui.label(finding["slug"]).classes("px-title")
            times = f"{count} times" if count > 1 else ""
            ui.label(" ".join(filter(None, (finding["severity"], times, when)))).classes(
                "px-soft text-caption"
            )
        ui.label(finding["what"]).style("overflow-wrap: anywhere")
        ui.label(finding["why"]).classes("px-soft text-body2").style("overflow-wrap: anywhere")
        if finding["fix"]:
            ui.label(finding["fix"]).classes("px-fix")
