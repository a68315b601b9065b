"""The list of runs: state, progress, best metric, GPU-hours; several can be compared."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from nicegui import ui

from phalanx.errors import printable
from phalanx.watch.plot import short_number
from phalanx.watch.summary import Summary
from phalanx.watch.web.access import Session
from phalanx.watch.web.library import Library, run_id
from phalanx.watch.web.theme import STATUS_COLOURS, columns, every, frame

_ROWS = 25
_HURRY_S = 0.3
_LABELS = {
    "name": "run",
    "status": "state",
    "progress": "progress",
    "best": "best metric",
    "loss": "loss",
    "hours": "GPU-hours",
    "started": "started",
}
_WIDE = {"classes": "px-wide", "headerClasses": "px-wide"}  # a narrow screen shows the name alone
_COLUMNS = [
    column if column["name"] == "name" else {**column, **_WIDE}
    for column in columns(_LABELS, right=("best", "loss", "hours", "started"))
]
_NAME_CELL = """<q-td :props="props" style="min-width:150px"><a :href="props.row.href"
style="color:inherit;font-weight:600;text-decoration:none">{{ props.row.name }}</a>
<div class="px-soft text-caption">{{ props.row.about }}</div>
<div class="px-narrow q-mt-xs"><q-badge :color="props.row.colour" class="text-weight-bold">
{{ props.row.status }}</q-badge> <span class="px-soft text-caption">{{ props.row.steps }}</span>
<div class="text-caption">{{ props.row.best }}</div></div></q-td>"""
_STATUS_CELL = """<q-td :props="props"><q-badge :color="props.row.colour"
class="text-weight-bold q-px-sm q-py-xs">{{ props.row.status }}</q-badge></q-td>"""
_PROGRESS_CELL = """<q-td :props="props" style="min-width:110px"><q-linear-progress
v-if="props.row.share !== null" :value="props.row.share" rounded size="8px"
:color="props.row.colour" style="max-width:220px"></q-linear-progress>
<div class="px-soft text-caption q-mt-xs">{{ props.row.steps }}</div></q-td>"""
_SORTS = {
    "newest": (lambda one: one.started_s, True),
    "running first": (lambda one: (one.status == "running", one.started_s), True),
    "name": (lambda one: one.name, False),
    "best metric": (lambda one: one.best if one.best is not None else float("-inf"), True),
    "GPU-hours": (lambda one: one.rank_hours, True),
}


class ListPage:
    """What one browser sees of the list."""

    def __init__(self, library: Library, session: Session) -> None:
        self._library = library
        self._page = 1
        self._is_looking = False
        self._all: list[Summary] = []
        with frame("runs", session):
            with ui.row().classes("items-center w-full gap-3"):
                self._title = ui.label("").classes("px-name")
                ui.space()
                self._filter = ui.input(placeholder="name, state or recipe", on_change=self._again)
                self._filter.props("dense outlined clearable debounce=300").classes("w-56")
                self._sort = ui.select(list(_SORTS), value="newest", on_change=self._again)
                self._sort.props("dense outlined").classes("w-40")
                self._compare = ui.button("compare", on_click=self._go_compare)
                self._compare.props("unelevated no-caps color=primary").mark("compare")
            self._table: Any = (
                ui.table(
                    rows=[],
                    columns=_COLUMNS,
                    row_key="id",
                    selection="multiple",
                    on_select=lambda e: self._compare.set_enabled(len(e.selection) > 1),
                )
                .classes("w-full")
                .props('flat no-data-label="no run here yet"')
            )
            for name, cell in (
                ("name", _NAME_CELL),
                ("status", _STATUS_CELL),
                ("progress", _PROGRESS_CELL),
            ):
                self._table.add_slot(f"body-cell-{name}", cell)
            self._pages = ui.pagination(1, 1, value=1, direction_links=True, on_change=self._turn)
            self._pages.props("max-pages=7")
        self._compare.set_enabled(False)
        every(2.0, self.refresh)

    async def refresh(self) -> None:
        """Show what has changed. Of very many runs some at first, the others soon after."""
        if self._is_looking:
            return
        self._is_looking = True
        try:
            look = partial(self._library.summaries, budget_s=_HURRY_S)
            self._all, is_whole = await asyncio.to_thread(look)
            self._draw()
        finally:
            self._is_looking = False
        if not is_whole:
            ui.timer(0.05, self.refresh, once=True)

    def _again(self) -> None:
        self._page = 1
        self._draw()

    def _turn(self) -> None:
        self._page = int(self._pages.value or 1)
        self._draw()

    def _draw(self) -> None:
        word = (self._filter.value or "").lower()
        key, is_reversed = _SORTS[self._sort.value]
        found = [
            one for one in self._all if word in f"{one.name} {one.status} {one.recipe}".lower()
        ]
        found.sort(key=key, reverse=is_reversed)
        pages = max(1, -(-len(found) // _ROWS))
        self._page = min(self._page, pages)
        if self._pages.max != pages:
            self._pages.max = pages
        self._pages.set_visibility(pages > 1)
        running = sum(one.status == "running" for one in self._all)
        self._title.text = f"{len(self._all):,} runs, {running} running"
        start = (self._page - 1) * _ROWS
        rows = [row_of(one) for one in found[start : start + _ROWS]]
        if rows != self._table.rows:
            self._table.rows = rows

    def _go_compare(self) -> None:
        chosen = [("run", row["id"]) for row in self._table.selected]
        if len(chosen) > 1:
            ui.navigate.to(f"/compare?{urlencode(chosen)}")


def row_of(one: Summary) -> dict[str, Any]:
    """A row as the table wants it: text and numbers only."""
    identifier = run_id(Path(one.path))
    about = [one.recipe, f"{one.ranks} ranks" if one.ranks and one.ranks > 1 else "", one.device]
    if one.restarts:
        about.append(f"{one.restarts} restart{'' if one.restarts == 1 else 's'}")
    total = f" / {one.total_steps:,}" if one.total_steps else ""
    return {
        "id": identifier,
        "href": f"/run/{identifier}",
        "name": printable(one.name),
        "about": printable(" · ".join(word for word in about if word)),
        "status": printable(one.status),
        "colour": STATUS_COLOURS.get(one.status, "grey"),
        "share": one.progress,
        "progress": one.progress or 0.0,
        "steps": f"step {one.step:,}{total}" if one.step is not None else "no step yet",
        "best": f"{printable(one.metric)} {short_number(one.best)}" if one.best is not None else "",
        "loss": short_number(one.loss) if one.loss is not None else "",
        "hours": f"{one.gpu_hours:.2f}" if one.gpu_hours is not None else "",
        "started": time.strftime("%Y-%m-%d %H:%M", time.localtime(one.started_s)),
    }
