"""What all pages have: the frame, colours for dark and light, small parts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from nicegui import ui

from phalanx.errors import printable
from phalanx.watch.web.access import Session
from phalanx.watch.web.charts import Options

SMOOTHING = 0.6
"""Of curves, before anybody has moved the slider."""
STATUS_COLOURS = {
    "running": "positive",
    "finished": "primary",
    "stopped": "warning",
    "failed": "negative",
    "gone": "negative",
}

_CSS = """
:root { --page: #f4f6fb; --card: #ffffff; --ink: #1d2433; --soft: #667085; --rule: #e3e7f0; }
body.body--dark { --page: #0e121b; --card: #171d2a; --ink: #e6eaf2; --soft: #8d97ab;
  --rule: #262e3f; }
body { background: var(--page) !important; color: var(--ink);
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
.nicegui-content { padding: 0 !important; }
.px-head { background: var(--card) !important; color: var(--ink) !important;
  border-bottom: 1px solid var(--rule); box-shadow: none !important; }
.px-page { width: 100%; max-width: 1400px; margin: 0 auto; padding: 20px 24px 48px; gap: 16px; }
.px-card { background: var(--card) !important; color: var(--ink); border: 1px solid var(--rule);
  border-radius: 12px; box-shadow: none !important; padding: 16px; gap: 8px; min-width: 0; }
.px-card { width: 100%; }
.px-card .q-table__card { border: none; }
.q-tab-panel { padding: 0 !important; }
.px-soft { color: var(--soft); }
.px-title { font-weight: 600; font-size: 0.95rem; }
.px-tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 12px;
  width: 100%; }
.px-tile { background: var(--card); border: 1px solid var(--rule); border-radius: 12px;
  padding: 12px 14px; min-width: 0; }
.px-tile .v { font-size: 1.12rem; font-weight: 650; line-height: 1.25; white-space: nowrap;
  overflow: hidden; text-overflow: ellipsis; font-variant-numeric: tabular-nums; }
.px-tile .k, .px-tile .n { font-size: 0.75rem; color: var(--soft); white-space: nowrap;
  overflow: hidden; text-overflow: ellipsis; }
.px-charts { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 16px;
  width: 100%; }
.px-chart { width: 100%; height: 260px; }
.px-log { font-family: ui-monospace, "SFMono-Regular", Menlo, Consolas, monospace;
  font-size: 12px; line-height: 1.5; white-space: pre-wrap; word-break: break-word;
  max-height: 65vh; overflow: auto; width: 100%; }
.px-name { font-size: 1.4rem; font-weight: 700; overflow-wrap: anywhere; }
.px-head a { color: inherit; text-decoration: none; font-weight: 700; letter-spacing: 0.02em; }
.px-pictures { display: grid; grid-template-columns: repeat(auto-fill, minmax(220px, 1fr));
  gap: 14px; width: 100%; }
.px-pictures img, .px-pictures video { width: 100%; border-radius: 8px; display: block; }
.q-table__card { background: var(--card) !important; color: var(--ink) !important;
  box-shadow: none !important; border: 1px solid var(--rule); border-radius: 12px; }
.q-table th { color: var(--soft); font-weight: 600; }
.q-table td { font-variant-numeric: tabular-nums; white-space: normal; overflow-wrap: anywhere; }
.q-table thead tr, .q-table tbody td { border-color: var(--rule) !important; }
.px-narrow { display: none; }
.px-finding { border-left: 4px solid var(--mark, #f2994a); }
.px-fix { font-family: ui-monospace, Menlo, Consolas, monospace; font-size: 13px;
  background: var(--page); border-radius: 8px; padding: 8px 10px; width: 100%;
  overflow-wrap: anywhere; }
@media (max-width: 760px) {
  .px-page { padding: 12px 12px 40px; gap: 12px; }
  .px-charts { grid-template-columns: minmax(0, 1fr); }
  .px-chart { height: 220px; }
  .px-tiles { grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 8px; }
  .px-name { font-size: 1.15rem; }
  .px-wide { display: none !important; }
  .px-narrow { display: block !important; }
}
"""


@contextmanager
def frame(title: str, session: Session) -> Iterator[Any]:
    """A page's head with its dark and light, and room for the rest; gives the part of the head that
    a page may fill."""
    ui.page_title(f"{printable(title)} - Phalanx")
    ui.colors(primary="#4f7cff", positive="#27ae8f", negative="#e5484d", warning="#d9930d")
    ui.add_css(_CSS)
    dark = ui.dark_mode(session.is_dark)

    def switch() -> None:
        order: dict[bool | None, bool | None] = {None: True, True: False, False: None}
        dark.value = session.is_dark = order[dark.value]
        button.props(f"icon={_icon(dark.value)}")

    with ui.header().classes("px-head items-center q-py-sm"):
        ui.link("Phalanx", "/").classes("text-subtitle1")
        extra = ui.row().classes("items-center gap-2 min-w-0")
        ui.space()
        button = ui.button(icon=_icon(session.is_dark), on_click=switch)
        button.props('flat round dense color=primary aria-label="dark, light or as the system"')
        button.mark("dark")
    with ui.column().classes("px-page"):
        yield extra


def _icon(is_dark: bool | None) -> str:
    return {None: "brightness_auto", True: "dark_mode", False: "light_mode"}[is_dark]


class Tile:
    """A figure with its name above and a word below."""

    def __init__(self, name: str) -> None:
        with ui.element("div").classes("px-tile") as self.box:
            ui.label(name).classes("k")
            self.value = ui.label("").classes("v")
            self.note = ui.label("").classes("n")

    def show(self, value: str, note: str = "") -> None:
        if self.value.text != value:
            self.value.text = value
        if self.note.text != note:
            self.note.text = note
        self.box.set_visibility(bool(value))


@contextmanager
def card(title: str, note: str = "") -> Iterator[Any]:
    """A box with a heading."""
    with ui.column().classes("px-card") as box:
        with ui.row().classes("items-baseline gap-2 w-full"):
            ui.label(title).classes("px-title")
            if note:
                ui.label(note).classes("px-soft text-caption")
        yield box


class Chart:
    """A chart that travels to the browser only when it has changed."""

    def __init__(self, options: Options, *, classes: str = "w-full", style: str = "") -> None:
        self._options = options
        self.element = ui.echart(dict(options)).classes(classes).style(style)

    def show(self, options: Options) -> None:
        if options != self._options:
            self._options = options
            self.element.options.clear()
            self.element.options.update(options)
            self.element.update()


def columns(labels: Mapping[str, str], *, right: Collection[str] = ()) -> list[dict[str, str]]:
    """Columns of a table from their headings; numbers stand on the right."""
    return [
        {
            "name": name,
            "label": label,
            "field": name,
            "align": "right" if name in right else "left",
        }
        for name, label in labels.items()
    ]


def table(
    rows: Sequence[Mapping[str, Any]],
    labels: Mapping[str, str],
    *,
    key: str,
    right: Collection[str] = (),
    pagination: int | None = None,
) -> ui.table:
    """A table as wide as its box."""
    shown = columns(labels, right=right)
    made = ui.table(
        rows=[dict(row) for row in rows], columns=shown, row_key=key, pagination=pagination
    )
    return made.props("flat dense").classes("w-full")


def smoothing_slider(on_change: Callable[[float], Any]) -> None:
    """How much of a curve's noise is taken out."""
    ui.label("smoothing").classes("px-soft text-caption")
    slider = ui.slider(
        min=0,
        max=0.99,
        step=0.01,
        value=SMOOTHING,
        on_change=lambda e: on_change(float(e.value)),
    )
    slider.props("dense label").classes("w-40").mark("smoothing")


def axis_toggle(on_change: Callable[[bool], Any]) -> None:
    """Curves over steps, or over wall time."""
    toggle = ui.toggle(
        {False: "steps", True: "wall time"}, value=False, on_change=lambda e: on_change(e.value)
    )
    toggle.props("dense no-caps unelevated toggle-color=primary").mark("axis")


def every(seconds: float, refresh: Callable[[], Any]) -> None:
    """Do something again and again for as long as the page is open."""
    ui.timer(seconds, refresh, immediate=False)
