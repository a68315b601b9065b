"""What a run's page shows, as plain data: made in a thread while the run is held, drawn by the
page afterwards."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phalanx.errors import format_bytes, format_seconds, printable
from phalanx.run.media import find_media
from phalanx.watch.plot import short_number
from phalanx.watch.rank_rows import rank_cells, shown_ranks
from phalanx.watch.state import LOSS, Media, Note, Said
from phalanx.watch.watched_run import WatchedRun
from phalanx.watch.web.charts import Line, Options, curve_chart, heat_chart, time_chart

_MOST_RANK_LINES = 16
_MOST_CHARTS = 40
_MARKED = {"restart": "restart", "revision": "plan"}


@dataclass
class Settings:
    """How one browser wants its curves."""

    smoothing: float = 0.0
    is_by_time: bool = False
    is_log: bool = False


@dataclass
class Figures:
    """All of one look."""

    version: int
    name: str
    status: str
    rough: str
    tiles: dict[str, tuple[str, str]]
    share: float | None
    curves: dict[str, Options] = field(default_factory=dict)
    system: dict[str, Options] = field(default_factory=dict)
    heat: Options | None = None
    timeline: Options | None = None
    notes: list[Note] = field(default_factory=list)
    ranks: list[dict[str, str]] = field(default_factory=list)
    findings: list[Said] = field(default_factory=list)
    media: list[Media] = field(default_factory=list)
    samples: list[dict[str, str]] = field(default_factory=list)
    predicted: list[dict[str, str]] = field(default_factory=list)
    choices: list[dict[str, str]] = field(default_factory=list)


def make_figures(watched: WatchedRun, settings: Settings) -> Figures:
    """One look at a run."""
    state, status = watched.state, watched.status()
    rough = f"reading {watched.reader.share_read:.0%}" if watched.reader.is_rough else ""
    shown, _ = shown_ranks(watched, 256)
    return Figures(
        version=watched.reader.version,
        name=printable(watched.name),
        status=status,
        rough=rough,
        tiles=_tiles(watched, status),
        share=watched.progress(),
        curves=_curves(watched, settings),
        system=_system(watched, settings),
        heat=heat_chart(state.ranks.heat, [number for number, _ in shown])
        if state.ranks.heat.columns
        else None,
        timeline=time_chart(
            state.attempts,
            state.notes,
            watched.clock() if status == "running" else state.last_s or 0.0,
        )
        if state.notes or state.attempts
        else None,
        notes=sorted(state.notes, key=lambda note: note.time_s, reverse=True)[:200],
        ranks=[rank_cells(watched, number, rank) for number, rank in shown],
        findings=list(reversed(state.findings)),
        media=list(state.media),
        samples=list(state.samples),
        predicted=_predicted(watched),
        choices=_choices(watched),
    )


def _tiles(watched: WatchedRun, status: str) -> dict[str, tuple[str, str]]:
    state, speed = watched.state, watched.speed()
    tiles: dict[str, tuple[str, str]] = {}
    share, total = watched.progress(), watched.total_steps
    if state.step is not None:
        of = f"{state.step:,}" + (f" / {total:,} steps" if total else " steps")
        tiles["progress"] = (f"{share:.1%}" if share is not None else f"{state.step:,}", of)
    left, elapsed = watched.left_s(), watched.elapsed_s()
    planned = watched.planned_number("duration_s")
    if status == "running" and left is not None:
        beside = f"{format_seconds(elapsed or 0)} so far"
        tiles["time left"] = (format_seconds(left), beside)
    elif elapsed is not None:
        beside = f"plan {format_seconds(planned)}" if planned else ""
        tiles["time"] = (format_seconds(elapsed), beside)
    loss = state.series.get(LOSS)
    if loss is not None and loss.last is not None:
        lr = state.series.get("train/lr")
        at = f"lr {lr.last.value:.2e}" if lr is not None and lr.last is not None else ""
        tiles["loss"] = (short_number(loss.last.value), at)
    best = watched.best_metric
    if best is not None:
        name, value, step = best
        word = "best " if state.best else ""
        tiles[f"{word}{printable(name)[:40]}"] = (
            short_number(value),
            f"at step {step:,}" if step is not None else "newest",
        )
    for found in {one.title: one for one in state.evaluations}.values():
        for name, value in list(found.metrics.items())[:1]:
            at = f" of step {found.step:,}" if found.step is not None else ""
            tiles[printable(f"{found.title} {name}")[:60]] = (
                short_number(value),
                f"{found.weights} weights{at}, evaluated {clock(found.time_s)}",
            )
    if speed.samples_per_s is not None:
        rate = watched.planned_number("samples_per_s")
        beside = f"plan {rate:,.0f}" if rate else ""
        tiles["samples/s"] = (f"{speed.samples_per_s:,.0f}", beside)
    if speed.mfu is not None:
        tiles["MFU"] = (f"{speed.mfu:.1%}", "of the peak")
    if watched.has_gpus:
        tiles["GPU-hours"] = (f"{watched.device_hours():.2f}", f"{state.ranks.world} ranks")
    if state.num_restarts:
        tiles["restarts"] = (str(state.num_restarts), "")
    return tiles


def _start(watched: WatchedRun) -> float:
    return watched.state.first_s or 0.0


def _curves(watched: WatchedRun, settings: Settings) -> dict[str, Options]:
    """A chart for the loss with its terms, for each metric of the tests, and for the rest."""
    series, start = watched.state.series, _start(watched)
    names = [name for name in series if not name.startswith("system/") and len(series[name])]
    terms = [
        n
        for n in names
        if n.startswith("train/")
        and n not in (LOSS, "train/lr", "train/grad_norm", "train/loss_scale")
    ]
    groups: dict[str, list[str]] = {"loss": [n for n in [LOSS, *terms] if n in names]}
    metric = watched.planned("metric")
    tests = sorted(
        (n for n in names if n.startswith("test/")), key=lambda name: name != f"test/{metric}"
    )
    groups |= {name.replace("/", " "): [name] for name in tests}
    groups["samples per second"] = ["speed/samples_per_s"]
    groups["learning rate"] = ["train/lr"]
    groups["gradient norm"] = ["train/grad_norm"]
    groups["share of the time waiting for samples"] = ["speed/data_wait"]
    groups["loss scale"] = ["train/loss_scale"]
    charts = {}
    for title, wanted in list(groups.items())[:_MOST_CHARTS]:
        lines = [
            Line(
                printable(n.partition("/")[2]),
                series[n].points(),
                is_by_time=settings.is_by_time,
                start_s=start,
            )
            for n in wanted
            if n in names
        ]
        if not lines:
            continue
        is_rate = title == "samples per second"
        charts[printable(title)] = curve_chart(
            lines,
            smoothing=settings.smoothing if title == "loss" or is_rate or "norm" in title else 0.0,
            is_log=settings.is_log and title == "loss",
            planned=watched.planned_number("samples_per_s") if is_rate else None,
            marks=_marks(watched, settings, start) if title == "loss" else (),
        )
    return charts


def _marks(watched: WatchedRun, settings: Settings, start: float) -> list[tuple[float, str]]:
    """Restarts and plan revisions, where the loss was when they came; those of one place as one."""
    words: dict[float, list[str]] = {}
    points = watched.state.series[LOSS].points()
    if not points:
        return []
    for note in watched.state.notes:
        word = _MARKED.get(note.kind)
        if word is None:
            continue
        if settings.is_by_time:
            x = note.time_s - start
        else:
            before = [point.step for point in points if point.time_s <= note.time_s]
            x = before[-1] if before else 0.0
        last = points[-1].step if not settings.is_by_time else x
        words.setdefault(_near(x, words, last), []).append(word)
    return [(x, ", ".join(dict.fromkeys(found))) for x, found in words.items()]


def _near(x: float, known: Iterable[float], last: float) -> float:
    """A place that has a mark already, when one is near: two would cover each other."""
    return next((one for one in known if abs(one - x) < 0.02 * last), x)


_SYSTEM = {
    "gpu_percent": "GPU busy, per cent",
    "gpu_memory_gib": "GPU memory, GiB",
    "gpu_power_w": "GPU power, W",
    "gpu_temperature_c": "GPU temperature, C",
    "cpu_percent": "CPU, per cent of a core",
    "memory_gib": "host memory, GiB",
}


def _system(watched: WatchedRun, settings: Settings) -> dict[str, Options]:
    """A chart for each figure, a line for each rank."""
    series, start, charts = watched.state.series, _start(watched), {}
    for name, title in _SYSTEM.items():
        lines = []
        for number in range(min(_MOST_RANK_LINES, watched.state.ranks.world)):
            one = series.get(f"system/rank_{number}/{name}")
            if one is not None and len(one):
                points = one.points()
                lines.append(Line(f"rank {number}", points, is_by_time=True, start_s=start))
        if lines:
            planned = watched.planned_number("process_bytes") if name == "gpu_memory_gib" else None
            charts[title] = curve_chart(
                lines,
                planned=planned / 2**30 if planned else None,
                is_from_zero="memory" in name or "percent" in name,
            )
    return charts


def _predicted(watched: WatchedRun) -> list[dict[str, str]]:
    """What the plan said beside what came."""
    state, speed, rows = watched.state, watched.speed(), []

    def row(what: str, planned: str, actual: str) -> None:
        if planned or actual:
            rows.append({"what": what, "planned": planned, "actual": actual})

    memory = watched.planned_number("memory_bytes")
    is_gpu = watched.has_gpus
    row(
        "memory of a rank" + ("" if is_gpu else " (the model's; actual: the whole process)"),
        format_bytes(int(memory)) if memory else "",
        format_bytes(state.memory_peak_bytes) if state.memory_peak_bytes else "",
    )
    step = watched.planned_number("step_s")
    steps = [rank.step_s for rank in state.ranks.by_number.values() if rank.step_s]
    row(
        "a step",
        format_seconds(step) if step else "",
        format_seconds(sum(steps) / len(steps)) if steps else "",
    )
    rate = watched.planned_number("samples_per_s")
    row(
        "samples per second",
        f"{rate:,.0f}" if rate else "",
        f"{speed.samples_per_s:,.0f}" if speed.samples_per_s else "",
    )
    whole, elapsed = watched.planned_number("duration_s"), watched.elapsed_s()
    is_over = watched.status() == "finished"
    left = watched.left_s()
    expected = elapsed if is_over or elapsed is None else elapsed + (left or 0.0)
    row(
        "the whole run",
        format_seconds(whole) if whole else "",
        (format_seconds(expected) + ("" if is_over else ", as it goes")) if expected else "",
    )
    return rows


def _choices(watched: WatchedRun) -> list[dict[str, str]]:
    return [
        {
            "name": name.replace("_", " "),
            "value": _word(choice.get("value")),
            "reason": printable(str(choice.get("reason", ""))[:500]),
        }
        for name, choice in watched.plan.items()
        if isinstance(choice, dict) and {"value", "reason"} <= set(choice)
    ]


def _word(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return printable(str(value))[:200] if value not in (None, []) else "none"


def clock(time_s: float) -> str:
    """When something happened, in this machine's time."""
    return time.strftime("%m-%d %H:%M:%S", time.localtime(time_s))


def media_file(watched: WatchedRun, number: int) -> tuple[Path, str] | None:
    """A picture or a video that an event names, with its type: a file below `media`, and nothing
    else, whatever the event says."""
    media = watched.state.media
    if not 0 <= number < len(media):
        return None
    path = find_media(watched.run, media[number].file)
    kind = MEDIA_TYPES.get(path.suffix.lower()) if path is not None else None
    return (path, kind) if path is not None and kind is not None else None


MEDIA_TYPES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".mp4": "video/mp4",
}
