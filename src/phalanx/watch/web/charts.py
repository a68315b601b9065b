"""Charts as ECharts wants them, from curves: smoothed lines over what was logged, a heat map of
ranks, a time line. Names that come from runs stand in data only, which ECharts shows as text."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import log2
from statistics import median
from typing import Any

from phalanx.watch.ranks import HeatMap
from phalanx.watch.series import Point
from phalanx.watch.state import Attempt, Note

Options = dict[str, Any]

COLOURS = ("#4f7cff", "#f2994a", "#27ae8f", "#bb6bd9", "#eb5757", "#56ccf2", "#c9a227", "#8d99ae")
_INK = "#8a93a6"  # readable on dark and on light
_RULE = "rgba(138,147,166,0.18)"
_SENT = 600  # points of a line that travel to the browser


@dataclass(frozen=True)
class Line:
    """One line of a chart."""

    name: str
    points: Sequence[Point]
    is_by_time: bool = False
    start_s: float = 0.0
    """When the run began."""

    def x(self, point: Point) -> float:
        """Steps, or seconds since the beginning."""
        return point.time_s - self.start_s if self.is_by_time else point.step


def thin(points: Sequence[Point]) -> list[Point]:
    """At most as many points as are sent; the last one stays."""
    if len(points) <= _SENT:
        return list(points)
    every = -(-len(points) // _SENT)
    return [*points[:-1:every], points[-1]]


def smoothed(values: Sequence[float], weight: float) -> list[float]:
    """The mean of what came before, older values counting less; corrected for the beginning, as
    TensorBoard does it."""
    if weight <= 0:
        return list(values)
    mean, found = 0.0, []
    for count, value in enumerate(values, 1):
        mean = weight * mean + (1 - weight) * value
        found.append(mean / (1 - weight**count))
    return found


def curve_chart(
    lines: Sequence[Line],
    *,
    smoothing: float = 0.0,
    is_log: bool = False,
    planned: float | None = None,
    is_from_zero: bool = False,
    marks: Sequence[tuple[float, str]] = (),
) -> Options:
    """Lines over steps or hours. What was logged shines through the smoothed line."""
    series: list[Options] = []
    scale, label = _unit(lines)
    for number, line in enumerate(lines):
        colour = COLOURS[number % len(COLOURS)]
        points = thin(line.points)
        xs = [round(line.x(point) / scale, 5) for point in points]
        values = [point.value for point in points]
        if smoothing > 0 and len(values) > 2:
            faint = {"color": colour, "opacity": 0.25}
            logged = _series(f"{line.name} (logged)", xs, values, width=1, style=faint)
            series.append({**logged, "silent": True, "tooltip": {"show": False}})
            values = smoothed(values, smoothing)
        series.append(_series(line.name, xs, values, width=2, style={"color": colour}))
    if series and (marks or planned is not None):
        series[-1]["markLine"] = _mark_lines([(x / scale, text) for x, text in marks], planned)
    return {
        "animation": False,
        "grid": {
            "left": 8,
            "right": 18,
            "top": 30,
            "bottom": 8,
            "containLabel": True,
        },
        "legend": {
            "show": len(lines) > 1,
            "type": "scroll",
            "top": 0,
            "left": 0,
            "right": 84,
            "icon": "roundRect",
            "textStyle": {"color": _INK},
            "data": [line.name for line in lines],
        },
        "tooltip": {"trigger": "axis", "confine": True, "axisPointer": {"type": "line"}},
        "toolbox": {
            "show": True,
            "right": 0,
            "top": -4,
            "itemSize": 12,
            "feature": {"dataZoom": {"yAxisIndex": "none"}, "restore": {}},
            "iconStyle": {"borderColor": _INK},
        },
        "dataZoom": [{"type": "inside", "filterMode": "none"}],
        "xAxis": {
            **_axis(label),
            "type": "value",
            "min": "dataMin",
            "max": "dataMax",
            "minInterval": 0 if label else 1,
        },
        "yAxis": {
            **_axis(""),
            "type": "log" if is_log else "value",
            "scale": not is_from_zero,
            "max": _top(lines, planned) if planned is not None else None,
        },
        "series": series,
    }


def _series(
    name: str, xs: list[float], values: list[float], *, width: int, style: Options
) -> Options:
    return {
        "type": "line",
        "name": name,
        "data": [[x, _figures(v)] for x, v in zip(xs, values, strict=True)],
        "showSymbol": len(xs) < 3,
        "lineStyle": {"width": width, **style},
        "itemStyle": style,
        "animation": False,
    }


def _mark_lines(marks: Sequence[tuple[float, str]], planned: float | None) -> Options:
    found = [("xAxis", x, text) for x, text in marks[-40:]]
    found += [("yAxis", planned, "plan")] if planned is not None else []
    label = {"color": _INK, "fontSize": 10, "position": "insideEndTop"}
    data = [{axis: at, "label": {"formatter": text, **label}} for axis, at, text in found]
    return {
        "silent": True,
        "symbol": "none",
        "animation": False,
        "lineStyle": {"color": _INK, "type": "dashed", "opacity": 0.7},
        "data": data,
    }


def _unit(lines: Sequence[Line]) -> tuple[float, str]:
    """(what x is divided by, how its labels read)."""
    if not lines or not lines[0].is_by_time:
        return 1.0, ""
    last = max((line.x(line.points[-1]) for line in lines if line.points), default=0.0)
    if last < 180:
        return 1.0, "{value} s"
    return (60.0, "{value} min") if last < 3 * 3600 else (3600.0, "{value} h")


def _top(lines: Sequence[Line], planned: float) -> float:
    """So that the plan's line is seen too."""
    return _figures(1.08 * max([planned, *(p.high for line in lines for p in line.points)]))


def _axis(label: str) -> Options:
    labels: Options = {"color": _INK, "hideOverlap": True}
    if label:
        labels |= {"formatter": label, "showMinLabel": False, "showMaxLabel": False}
    return {
        "axisLabel": labels,
        "axisLine": {"show": True, "lineStyle": {"color": _RULE}},
        "axisTick": {"show": False},
        "splitLine": {"lineStyle": {"color": _RULE}},
    }


def heat_chart(heat: HeatMap, ranks: Sequence[int]) -> Options:
    """Rank over time; the colour is the time of a step that a rank spends on its own account,
    beside that of the middle one: a straggler is a bright line."""
    columns = [time.strftime("%H:%M:%S", time.localtime(t)) for t in heat.times]
    row_of = {rank: row for row, rank in enumerate(ranks)}
    cells = []
    for x, column in enumerate(heat.columns):
        usual = median(column.values())
        for rank, seconds in column.items():
            if rank in row_of:
                share = min(16.0, max(seconds / usual, 1 / 16)) if usual > 0 else 1.0
                cells.append([x, row_of[rank], round(log2(share), 3), round(1e3 * seconds, 3)])
    return {
        "animation": False,
        "grid": {"left": 8, "right": 8, "top": 8, "bottom": 44, "containLabel": True},
        "tooltip": {"confine": True, ":formatter": _HEAT_TIP},
        "xAxis": {**_axis(""), "type": "category", "data": columns, "splitArea": {"show": False}},
        "yAxis": {
            **_axis(""),
            "type": "category",
            "inverse": True,
            "data": [f"rank {rank}" for rank in ranks],
        },
        "visualMap": {
            "min": -1,
            "max": 1,
            "dimension": 2,
            "orient": "horizontal",
            "left": "center",
            "bottom": 0,
            "itemHeight": 120,
            "itemWidth": 10,
            "text": ["twice the middle rank", "half"],
            "textStyle": {"color": _INK},
            "inRange": {"color": ["#2f6fd0", "#5f88bd", "#8a95a8", "#e0994a", "#e5484d"]},
        },
        "series": [
            {
                "type": "heatmap",
                "data": cells,
                "progressive": 2000,
                "animation": False,
                "itemStyle": {"borderWidth": 0},
            }
        ],
    }


_HEAT_TIP = (
    "p => 'rank row ' + p.value[1] + ': ' + p.value[3].toFixed(1) + ' ms of its own per step, ' "
    "+ Math.pow(2, p.value[2]).toFixed(2) + ' x the middle one'"
)


_LANES = {
    "nodes": ("attempts", "#4f7cff"),
    "restart": ("attempts", "#f2994a"),
    "outcome": ("attempts", "#27ae8f"),
    "stop": ("attempts", "#c9a227"),
    "death": ("ranks", "#eb5757"),
    "hang": ("ranks", "#eb5757"),
    "revision": ("plan", "#bb6bd9"),
    "finding": ("findings", "#f2994a"),
    "checkpoint": ("checkpoints", "#27ae8f"),
    "export": ("checkpoints", "#56ccf2"),
    "evaluate": ("evaluations", "#4f7cff"),
}
LANES = ("attempts", "ranks", "plan", "findings", "checkpoints", "evaluations")


def time_chart(attempts: Sequence[Attempt], notes: Sequence[Note], end_s: float) -> Options:
    """What happened when: a bar for each start of the ranks, a mark for everything else."""
    bars: list[list[Any]] = []
    for this, after in zip(attempts, [*attempts[1:], None], strict=False):
        until = after.began_s if after is not None else this.last_s or end_s
        # A point without a place ends a line.
        bars += [[1e3 * this.began_s, "attempts"], [1e3 * until, "attempts"], [1e3 * until, "-"]]
    series: list[Options] = [
        {
            "type": "line",
            "data": bars,
            "silent": True,
            "showSymbol": False,
            "animation": False,
            "tooltip": {"show": False},
            "lineStyle": {"width": 12, "color": COLOURS[0], "opacity": 0.35, "cap": "butt"},
        }
    ]
    for kind, (lane, colour) in _LANES.items():
        mine = [note for note in notes if note.kind == kind][-200:]
        if mine:
            series.append(
                {
                    "type": "scatter",
                    "name": kind,
                    "symbolSize": 11,
                    "animation": False,
                    "itemStyle": {"color": colour},
                    "data": [
                        {"value": [1e3 * note.time_s, lane], "name": note.text[:160]}
                        for note in mine
                    ],
                }
            )
    return {
        "animation": False,
        "grid": {"left": 8, "right": 18, "top": 12, "bottom": 8, "containLabel": True},
        # Without a formatter of ours ECharts shows name and value as text.
        "tooltip": {"trigger": "item", "confine": True},
        "dataZoom": [{"type": "inside", "filterMode": "none"}],
        "xAxis": {**_axis(""), "type": "time"},
        "yAxis": {**_axis(""), "type": "category", "data": list(LANES), "inverse": True},
        "series": series,
    }


def _figures(value: float) -> float:
    """Six figures: what is sent is a third of what Python would print."""
    return float(f"{value:.6g}")
