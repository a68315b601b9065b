"""One run in a terminal: progress, curves, a row for each rank, what happened, what is wrong."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from phalanx.errors import format_seconds, printable
from phalanx.watch.plot import plot, short_number
from phalanx.watch.rank_rows import rank_table
from phalanx.watch.series import Series
from phalanx.watch.state import LOSS
from phalanx.watch.watched_run import WatchedRun

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

_STATUS = {
    "running": "bold green",
    "finished": "bold cyan",
    "stopped": "bold yellow",
    "failed": "bold red",
    "gone": "bold red",
}
_SEVERITY = {"error": "bold red", "warning": "yellow", "note": "cyan"}


@dataclass(frozen=True)
class Room:
    """How much of each part is shown."""

    width: int
    curve_lines: int = 7
    ranks: int = 16
    notes: int = 6
    findings: int = 3

    @classmethod
    def of(cls, width: int, height: int) -> Room:
        """What a terminal has room for: what does not fit is not seen, and findings come last."""
        if height >= 40:
            return cls(width)
        spare = max(0, height - 16)
        return cls(
            width,
            curve_lines=3 + min(3, spare // 4),
            ranks=max(2, min(16, spare // 3)),
            notes=min(4, spare // 6),
            findings=1 + (height >= 32),
        )


def render(watched: WatchedRun, room: Room) -> RenderableType:
    """All of it, as wide as the terminal."""
    from rich.console import Group

    parts: list[RenderableType] = [*_head(watched, room.width)]
    parts += _curves(watched, room)
    table = rank_table(watched, room.width, room.ranks)
    if table is not None:
        parts += [_line(""), table]
    parts += _events(watched, room)
    parts += _findings(watched, room)
    return Group(*parts)


def _line(text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(printable(text), style=style, no_wrap=True, overflow="ellipsis")


def _head(watched: WatchedRun, width: int) -> list[RenderableType]:
    from rich.text import Text

    state, status = watched.state, watched.status()
    title = Text(no_wrap=True, overflow="ellipsis")
    title.append(printable(watched.name), style="bold")
    title.append("  ")
    title.append(status, style=_STATUS.get(status, "bold"))
    if watched.reader.is_rough:
        title.append(f"  reading {watched.reader.share_read:.0%}", style="dim")
    lines: list[RenderableType] = [title]
    if status == "running" and state.doing:
        lines.append(_line(state.doing, "dim"))
    bar = _progress_bar(watched, width)
    if bar is not None:
        lines.append(bar)
    for facts in (_times(watched), _figures(watched), _counts(watched)):
        if facts:
            lines += [_line(text) for text in _wrap(facts, width)]
    reason = str(state.outcome.get("reason") or "")
    if reason and reason != status:
        lines.append(_line(reason, _STATUS.get(status, "")))
    if status == "gone":
        said = "its command ended without a word: `phalanx doctor` looks for the cause"
        lines.append(_line(said, "red"))
    return lines


def _progress_bar(watched: WatchedRun, width: int) -> Text | None:
    from rich.text import Text

    share, step, total = watched.progress(), watched.state.step, watched.total_steps
    if share is None or step is None:
        return None
    label = f" {share:6.1%}  step {step:,} of {total:,}"
    room = max(10, width - len(label))
    full = round(share * room)
    text = Text(no_wrap=True)
    text.append("━" * full, style="green" if share < 1 else "cyan")
    text.append("━" * (room - full), style="bright_black")
    text.append(label)
    return text


def _times(watched: WatchedRun) -> list[str]:
    facts = []
    elapsed, left = watched.elapsed_s(), watched.left_s()
    is_running = watched.status() == "running"
    if elapsed is not None:
        facts.append(f"{format_seconds(elapsed)} {'so far' if is_running else 'in all'}")
    if is_running and left is not None:
        facts.append(f"{format_seconds(left)} left")
    planned = watched.planned_number("duration_s")
    if planned is not None:
        facts.append(f"the plan says {format_seconds(planned)} of training")
    if watched.state.epoch is not None:
        facts.append(f"epoch {watched.state.epoch:.1f}")
    return facts


def _figures(watched: WatchedRun) -> list[str]:
    state, speed, facts = watched.state, watched.speed(), []
    if speed.samples_per_s is not None:
        planned = watched.planned_number("samples_per_s")
        beside = f" (plan {planned:,.0f})" if planned else ""
        facts.append(f"{speed.samples_per_s:,.0f} samples/s{beside}")
    elif speed.steps_per_s is not None:
        facts.append(f"{short_number(speed.steps_per_s)} steps/s")
    if speed.mfu is not None:
        facts.append(f"MFU {speed.mfu:.1%}")
    lr = state.series.get("train/lr")
    if lr is not None and lr.last is not None:
        facts.append(f"lr {lr.last.value:.2e}")
    best = watched.best_metric
    if best is not None:
        name, value, step = best
        at = f" at step {step:,}" if step is not None else ""
        word = "best " if state.best else ""
        facts.append(f"{word}{name} {short_number(value)}{at}")
    return facts


def _counts(watched: WatchedRun) -> list[str]:
    state, facts = watched.state, []
    if state.num_restarts:
        facts.append(f"{state.num_restarts} restart{'' if state.num_restarts == 1 else 's'}")
    revision = watched.plan.get("revision")
    if revision:
        facts.append(f"plan revision {revision}")
    if state.saved_step is not None:
        facts.append(f"saved at step {state.saved_step:,}")
    if state.num_skipped:
        facts.append(f"{state.num_skipped} steps skipped")
    if watched.has_gpus and state.attempts:
        facts.append(f"{watched.device_hours():.2f} GPU-hours")
    if state.num_damaged:
        facts.append(f"{state.num_damaged} damaged lines")
    return facts


def _wrap(facts: Iterable[str], width: int) -> list[str]:
    """Facts in as few lines as hold them."""
    lines: list[str] = []
    for fact in facts:
        joined = f"{lines[-1]} · {fact}" if lines else fact
        if lines and len(joined) <= width:
            lines[-1] = joined
        else:
            lines.append(fact)
    return lines


def _curves(watched: WatchedRun, room: Room) -> list[RenderableType]:
    from rich.table import Table
    from rich.text import Text

    chosen = _chosen(watched)
    if not chosen:
        return []
    each = (room.width - 2) // 2 if len(chosen) > 1 else room.width
    grid = Table.grid(padding=(0, 2, 0, 0))
    for _ in chosen:
        grid.add_column(width=each, no_wrap=True)
    cells = []
    for name, series, style in chosen:
        points = series.points()
        last = points[-1].value
        bad = f"  {series.num_bad} not finite" if series.num_bad else ""
        text = Text(f"{printable(name)} {short_number(last)}", style="bold", no_wrap=True)
        text.append(bad, style="red")
        for line in plot(points, width=each, height=room.curve_lines):
            text.append("\n" + line, style=style)
        left, right = f"{points[0].step:,.0f}", f"{points[-1].step:,.0f}"
        text.append(f"\n{left}{right:>{each - len(left)}}", style="dim")
        cells.append(text)
    grid.add_row(*cells)
    return [_line(""), grid]


def _chosen(watched: WatchedRun) -> list[tuple[str, Series, str]]:
    """The loss, and the metric that decides."""
    series, found = watched.state.series, []
    if LOSS in series and len(series[LOSS]):
        found.append(("loss", series[LOSS], "green"))
    metric = watched.planned("metric")
    tests = [name for name in series if name.startswith("test/")]
    name = f"test/{metric}" if f"test/{metric}" in tests else next(iter(tests), None)
    if name is not None and len(series[name]):
        found.append((name.replace("/", " "), series[name], "magenta"))
    return found


def _events(watched: WatchedRun, room: Room) -> list[RenderableType]:
    shown = [note for note in watched.state.notes if note.kind != "finding"]
    shown = sorted(shown, key=lambda note: note.time_s)
    saves = [note for note in shown if note.kind == "checkpoint"]
    kept = [note for note in shown if note.kind != "checkpoint" or note in saves[-2:]][
        -room.notes :
    ]
    if not kept or not room.notes:
        return []
    lines = [
        _line(f"{time.strftime('%H:%M:%S', time.localtime(note.time_s))}  {note.text}", "dim")
        for note in kept
    ]
    return [_line(""), *lines]


def _findings(watched: WatchedRun, room: Room) -> list[RenderableType]:
    from rich.text import Text

    lines: list[RenderableType] = []
    findings = watched.state.findings
    for said in findings[-room.findings :]:
        finding = said.finding
        style = _SEVERITY.get(finding["severity"], "red")
        text = Text(overflow="fold")
        text.append(f"{finding['severity']}[{printable(finding['slug'])}]", style=style)
        times = f" ({said.count} times)" if said.count > 1 else ""
        text.append(f": {printable(finding['what'])}{times}")
        text.append(f"\n  why: {printable(finding['why'])}", style="dim")
        text.append(f"\n  fix: {printable(finding['fix'])}")
        lines.append(text)
    left = len(findings) - len(lines)
    if left > 0:
        lines.insert(0, _line(f"{left} more before these", "dim"))
    return [_line(""), *lines] if lines else []
