"""A run as it happens: a progress bar on a terminal, plain lines in a pipe or under CI."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from phalanx.errors import format_bytes, format_seconds
from phalanx.machine.environment import show_variables
from phalanx.output import console
from phalanx.output.language import translate
from phalanx.planner.schema.plan import Plan
from phalanx.run.event_kinds import (
    AttemptStarted,
    Evaluate,
    Evaluated,
    FindingMade,
    ModelSample,
    Preparing,
    RankStarted,
    RevisionMade,
    Samples,
    Step,
    StopAsked,
)
from phalanx.run.events import Event
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
        self._starts: dict[int, RankStarted] = {}
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
        match event.body:
            case AttemptStarted():
                self._starts.clear()
            case Preparing(what=what):
                self._show_preparing(what)
            case RankStarted() as start:
                self._show_start(start)
            case Step() as step:
                self._show_step(step)
            case Evaluate() as found:
                figures = _figures(found.metrics)
                mark = "  best so far" if found.is_best else ""
                self._say(f"epoch {found.epoch or 0.0:.1f}  test: {figures}{mark}")
            case Evaluated() as found:  # by somebody else meanwhile
                on = found.benchmark or "test split"
                figures = _figures(found.metrics)
                self._say(f"`phalanx evaluate` of step {found.step}, {on}: {figures}")
            case Samples(samples=samples):
                self._show_samples(samples)
            case RevisionMade() as revision:
                self._show_revision(revision)
            case StopAsked(reason=reason):
                self._say(reason)
            case FindingMade(finding=finding):
                console.show_findings([finding])

    def _say(self, text: str) -> None:
        console.tell(text)

    def _show_preparing(self, what: str) -> None:
        if self._bar is not None:  # as much as a line has room for
            self._bar.update(self._task, description=translate(what.partition(":")[0]))
        else:
            self._say(what)

    def _show_start(self, start: RankStarted) -> None:
        self._starts[start.rank] = start
        world = start.world
        if len(self._starts) < world:
            return
        over = f" over {start.backend}" if world > 1 else ""
        self._say(
            f"world size {world}{over}, {self._plan.batch.steps_per_epoch.value} steps per epoch"
        )
        for rank in range(world):
            self._say(f"  rank {rank}: {self._starts[rank].device}")
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
        if start.resumed_from:
            self._say(f"continues at step {start.step}: {start.resumed_from}")

    def _show_step(self, step: Step) -> None:
        number, epoch = step.step or 0, step.epoch or 0.0
        per_s = "/s" if self._bar is not None else " samples/s"  # 80 columns hold the bar
        facts = (
            f"loss {step.loss or 0.0:.4f}  lr {step.lr or 0.0:.1e}  "
            f"{step.samples_per_s or 0.0:,.0f}{per_s}  {(step.memory_bytes or 0) / 2**30:.1f} GiB"
        )
        total = self._plan.batch.total_steps.value
        if self._bar is not None:
            self._bar.update(
                self._task,
                description=translate(f"epoch {epoch:.1f}"),
                completed=number,
                total=total,
                facts=facts,
            )
            return
        now = time.monotonic()
        if now - self._last_line_s >= _LINE_EVERY_S or number == total:
            self._last_line_s = now
            done = number - self._figures.first_step
            left = (total - number) * self._figures.seconds / max(done, 1)
            self._say(
                f"step {number}/{total}  epoch {epoch:.1f}  {facts}  {format_seconds(left)} left"
            )

    def _show_samples(self, samples: list[ModelSample]) -> None:
        width = console.stderr().width
        for sample in samples[:_SHOWN_SAMPLES]:
            line = describe_sample(sample, width - 2)
            console.stderr().print(f"  {line}", style="dim", markup=False)

    def use_plan(self, plan: Plan) -> None:
        """Go by another revision from here on."""
        self._plan = plan

    def _show_revision(self, revision: RevisionMade) -> None:
        changes = ", ".join(
            f"{name} {_show(name, change.old)} -> {_show(name, change.new)}"
            for name, change in revision.changes.items()
        )
        self._say(f"plan revision {revision.revision}: {changes}: {revision.reason}")


def _figures(metrics: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())


def describe_sample(sample: ModelSample, width: int) -> str:
    """`given -> made (wanted ...)` on one line; each part is cut where the line has no room. Of
    what was given the end stays: instructions come first, and what this sample asks last."""
    given, made, wanted = (
        " ".join(text.split()) for text in (sample.given, sample.made, sample.wanted)
    )
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
