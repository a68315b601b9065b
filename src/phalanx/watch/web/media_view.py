"""Pictures and videos that the recipe logged, by step, and what the model made of test samples."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from nicegui import ui

from phalanx.errors import printable
from phalanx.watch.state import Media
from phalanx.watch.web.theme import card, table

_VIDEO = ".mp4"


class MediaView:
    """The gallery of one run: the newest step, or the one that is chosen."""

    def __init__(self, box: Any, run_id: str) -> None:
        self._box = box
        self._run_id = run_id
        self._media: list[Media] = []
        self._samples: list[dict[str, str]] | None = None
        self._slider: Any = None
        self._gallery: Any = None
        self._is_newest = True

    def draw(self, media: list[Media], samples: list[dict[str, str]]) -> None:
        if media == self._media and samples == self._samples:
            return
        self._media, self._samples = media, samples
        self._box.clear()
        steps = self._steps()
        with self._box:
            if not media and not samples:
                ui.label("the recipe has logged no pictures, videos or samples").classes("px-soft")
            if len(steps) > 1:
                with ui.row().classes("items-center gap-4 w-full"):
                    ui.label("step").classes("px-soft text-caption")
                    self._slider = ui.slider(
                        min=0,
                        max=len(steps) - 1,
                        step=1,
                        value=len(steps) - 1,
                        on_change=self._choose,
                    )
                    self._slider.props("dense").classes("w-64")
                    self._label = ui.label("").classes("text-caption")
            self._gallery = ui.element("div").classes("px-pictures")
            if samples:
                self._draw_samples(samples)
        self._fill(steps[-1] if steps else None)

    def _steps(self) -> list[int]:
        return sorted({one.step for one in self._media})

    def _choose(self) -> None:
        self._fill(self._steps()[int(self._slider.value)])

    def _fill(self, step: int | None) -> None:
        self._gallery.clear()
        if step is None:
            return
        if self._slider is not None:
            self._label.text = f"{step:,}"
        with self._gallery:
            for number, one in enumerate(self._media):
                if one.step != step:
                    continue
                # A number, not a name: what the file is called never stands in an address.
                address = f"/media/{self._run_id}/{number}?at={int(one.time_s)}"
                with ui.column().classes("px-card gap-1"):
                    if PurePosixPath(one.file).suffix.lower() == _VIDEO:
                        ui.video(address, autoplay=True, muted=True, loop=True)
                    else:
                        ui.element("img").props["src"] = address
                    ui.label(printable(one.name)).classes("px-title")
                    if one.caption:
                        ui.label(printable(one.caption)).classes("px-soft text-caption")

    def _draw_samples(self, samples: list[dict[str, str]]) -> None:
        names = list(dict.fromkeys(name for sample in samples for name in sample))[:6]
        labels = {f"c{n}": name for n, name in enumerate(names)}
        rows = [
            {"id": n, **{f"c{i}": sample.get(name, "") for i, name in enumerate(names)}}
            for n, sample in enumerate(samples)
        ]
        with card("what the model makes of test samples"):
            table(rows, labels, key="id").props("wrap-cells")
