"""A run as it happens: a progress bar on a terminal, plain lines in a pipe or under CI."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from phalanx.errors import Finding, format_bytes, format_seconds
from phalanx.machine.environment import show_variables
from phalanx.output import console
from phalanx.output.language import translate
from phalanx.planner.schema.plan import Plan
from phalanx.run.events import Event
from phalanx.run.sinks.curves import SAMPLE_COLUMNS
from phalanx.verbs.train import RunFigures

_SHOWN_SAMPLES = 2
_LINE_EVERY_S = 10.0  # in a pipe a line for every logged step would bury the rest


class RunView:
    """Shows events of one run."""

    def __init__(self, plan: Plan, logs: Path, figures: RunFigures) -> None:
        self._plan = plan
        self._logs = logs
        self._bar: Any = None
        self._task: Any = None
        self._starts: dict[int, dict[str, Any]] = {}
        self._last_line_s = 0.0
        self._figures = figures

    def __enter__(self) -> RunView:
        if console.stderr().is_interactive:
            self._bar = _make_bar()
            self._bar.start()
            self._task = self._bar.add_task(translate("starting the ranks"), total=None, facts="")
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def take(self, event: Event) -> None:
        """Show one event."""
        show = getattr(self, f"_show_{event.kind}", None)
        if show is not None:
            show(event)

    def _say(self, text: str) -> None:
        console.tell(text)

    def _show_attempt(self, event: Event) -> None:
        self._starts.clear()

    def _show_preparing(self, event: Event) -> None:
        if self._bar is not None:  # as much as a line has room for
            short = event.data["what"].partition(":")[0]
            self._bar.update(self._task, description=translate(short))
        else:
            self._say(event.data["what"])

    def _show_start(self, event: Event) -> None:
        self._starts[event.data["rank"]] = event.data
        world = event.data["world"]
        if len(self._starts) < world:
            return
        backend = event.data["backend"]
        over = f" over {backend}" if world > 1 else ""
        self._say(
            f"world size {world}{over}, {self._plan.batch.steps_per_epoch.value} steps per epoch"
        )
        for rank in range(world):
            self._say(f"  rank {rank}: {self._starts[rank]['device']}")
        if world > 1:
            speedup = self._plan.predicted.speedup
            self._say(f"  expected speed-up over one rank: {speedup.value:g}x ({speedup.reason})")
        plan = self._plan
        self._say(f"  batch: {plan.batch.accumulation.reason}")
        self._say(f"  learning rate {plan.learning.lr.value:g}: {plan.learning.lr.reason}")
        self._say(f"  precision {plan.numerics.precision.value}: {plan.numerics.precision.reason}")
        if plan.devices.gpus.value:
            self._say(
                f"  GPUs {','.join(map(str, plan.devices.gpus.value))}: {plan.devices.gpus.reason}"
            )
        if plan.devices.environment:
            self._say(f"  environment: {show_variables(plan.devices.environment)}")
        self._say(f"  logs: {self._logs}/rank-N.log")
        if event.data["resumed_from"]:
            self._say(f"continues at step {event.data['step']}: {event.data['resumed_from']}")

    def _show_step(self, event: Event) -> None:
        data = event.data
        per_s = "/s" if self._bar is not None else " samples/s"  # 80 columns hold the bar
        facts = (
            f"loss {data['loss']:.4f}  lr {data['lr']:.1e}  "
            f"{data['samples_per_s']:,.0f}{per_s}  {data['memory_bytes'] / 2**30:.1f} GiB"
        )
        total = self._plan.batch.total_steps.value
        if self._bar is not None:
            self._bar.update(
                self._task,
                description=translate(f"epoch {data['epoch']:.1f}"),
                completed=data["step"],
                total=total,
                facts=facts,
            )
            return
        now = time.monotonic()
        if now - self._last_line_s >= _LINE_EVERY_S or data["step"] == total:
            self._last_line_s = now
            done = data["step"] - self._figures.first_step
            left = (total - data["step"]) * self._figures.seconds / max(done, 1)
            self._say(
                f"step {data['step']}/{total}  epoch {data['epoch']:.1f}  {facts}  "
                f"{format_seconds(left)} left"
            )

    def _show_evaluate(self, event: Event) -> None:
        data = event.data
        figures = "  ".join(f"{name} {value:.4f}" for name, value in data["metrics"].items())
        mark = "  best so far" if data["is_best"] else ""
        self._say(f"epoch {data['epoch']:.1f}  test: {figures}{mark}")

    def _show_evaluated(self, event: Event) -> None:
        """What somebody found of the run's weights meanwhile."""
        data = event.data
        figures = "  ".join(f"{name} {value:.4f}" for name, value in data["metrics"].items())
        on = data["benchmark"] or "test split"
        self._say(f"`phalanx evaluate` of step {data['step']}, {on}: {figures}")

    def _show_samples(self, event: Event) -> None:
        width = console.stderr().width
        for sample in event.data["samples"][:_SHOWN_SAMPLES]:
            line = describe_sample(sample, width - 2)
            console.stderr().print(f"  {line}", style="dim", markup=False)

    def use_plan(self, plan: Plan) -> None:
        """Go by another revision from here on."""
        self._plan = plan

    def _show_revision(self, event: Event) -> None:
        data = event.data
        changes = ", ".join(
            f"{name} {_show(name, values['old'])} -> {_show(name, values['new'])}"
            for name, values in data["changes"].items()
        )
        self._say(f"plan revision {data['revision']}: {changes}: {data['reason']}")

    def _show_stop(self, event: Event) -> None:
        self._say(event.data["reason"])

    def _show_finding(self, event: Event) -> None:
        console.show_findings([Finding.from_json(event.data["finding"])])


def describe_sample(sample: dict[str, str], width: int) -> str:
    """`given -> made (wanted ...)` on one line; each part is cut where the line has no room. Of
    what was given the end stays: instructions come first, and what this sample asks last."""
    given, made, wanted = (" ".join(sample[name].split()) for name in SAMPLE_COLUMNS)
    room = width - len(" ->  (wanted )")
    parts = {"given": given, "made": made, "wanted": wanted}
    # The shortest first: what they leave is for the longer ones.
    for left, name in zip((3, 2, 1), sorted(parts, key=lambda n: len(parts[n])), strict=True):
        parts[name] = _cut(parts[name], max(4, room // left), is_end_kept=name == "given")
        room -= len(parts[name])
    return f"{parts['given']} -> {parts['made']} (wanted {parts['wanted']})"


def _cut(text: str, width: int, *, is_end_kept: bool) -> str:
    if len(text) <= width:
        return text
    return f"...{text[3 - width :]}" if is_end_kept else f"{text[: width - 3]}..."


def _make_bar() -> Any:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),  # takes what the rest leaves of the line
        MofNCompleteColumn(),
        TextColumn("{task.fields[facts]}"),
        TimeRemainingColumn(),
        console=console.stderr(),
        refresh_per_second=5,
        expand=True,
    )


def _show(name: str, value: Any) -> str:
    is_size = name.endswith("_bytes") and value is not None
    return format_bytes(value) if is_size else str(value)
