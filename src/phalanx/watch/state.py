"""All that a run's events say, folded into a bounded amount of memory, one event at a time.

Events of one writer come in order; those of different writers may come in any order, because the
files are read one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from phalanx.errors import Finding, format_bytes, signal_name
from phalanx.run.event_kinds import (
    AttemptStarted,
    Body,
    Checkpoint,
    Death,
    Dropped,
    Evaluate,
    Evaluated,
    Exported,
    FindingMade,
    Hang,
    MediaWritten,
    NodesJoined,
    Outcome,
    Pace,
    Preparing,
    RankStarted,
    RevisionMade,
    Samples,
    Skipped,
    Step,
    StopAsked,
    Usage,
)
from phalanx.run.events import EVALUATOR, Event
from phalanx.run.sinks.curves import scalars
from phalanx.watch.ranks import Ranks
from phalanx.watch.series import Series

LOSS = "train/loss"
_MOST_SERIES = 1500
_SYSTEM_POINTS = 250  # eight of them for each rank
_MOST_NOTES = 600
_MOST_FINDINGS = 100
_MOST_MEDIA = 400
_MOST_EVALUATIONS = 100
_LONGEST = 2000  # characters of a text that is shown


@dataclass
class Note:
    """A moment worth a mark on the time line."""

    time_s: float
    kind: str
    text: str
    step: int | None = None


@dataclass
class Attempt:
    """One start of the ranks."""

    number: int
    began_s: float
    ranks: int
    revision: int | None = None
    last_s: float = 0.0


@dataclass
class Said:
    """A Finding, and how often it came."""

    finding: dict[str, str]
    time_s: float
    count: int = 1


@dataclass
class Media:
    """A picture or a video that the recipe made."""

    step: int
    name: str
    file: str
    caption: str
    time_s: float


@dataclass
class Evaluation:
    """What `phalanx evaluate` found of the run's weights: no part of the curves."""

    time_s: float
    step: int | None
    weights: str
    metrics: dict[str, float]
    benchmark: str | None
    """None: of the test split."""

    @property
    def title(self) -> str:
        return self.benchmark or "test split"

    def __str__(self) -> str:
        figures = ", ".join(f"{name} {value:g}" for name, value in self.metrics.items())
        at = f" of step {self.step}" if self.step is not None else ""
        return f"evaluated {self.weights} weights{at} on {self.title}: {figures}"


@dataclass
class RunState:
    """One run, as far as its events have been read."""

    series: dict[str, Series] = field(default_factory=dict)
    ranks: Ranks = field(default_factory=Ranks)
    attempts: list[Attempt] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    findings: list[Said] = field(default_factory=list)
    media: list[Media] = field(default_factory=list)
    samples: list[dict[str, str]] = field(default_factory=list)
    """What the model made of a few test samples, the newest."""
    samples_s: float = 0.0
    """When it made them."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The newest evaluation."""
    best: dict[str, Any] = field(default_factory=dict)
    """The evaluation called best: step and metrics."""
    evaluations: list[Evaluation] = field(default_factory=list)
    """What `phalanx evaluate` found, the oldest first."""
    outcome: dict[str, Any] = field(default_factory=dict)
    """How it ended: status, reason, step, exit_code. Empty while it runs."""
    doing: str = ""
    """What is prepared before the first step."""
    step: int | None = None
    epoch: float | None = None
    total_steps: int | None = None
    """As a launched script's output has it."""
    first_step: int = 0
    """Steps that were done when the newest attempt began."""
    memory_peak_bytes: int = 0
    """The most that a logged step had."""
    saved_step: int | None = None
    num_saves: int = 0
    num_skipped: int = 0
    first_s: float | None = None
    last_s: float | None = None
    num_events: int = 0
    num_damaged: int = 0
    """Lines that are no event."""
    is_cpu: bool = True
    _attempt: int = -1
    _ended_attempt: int = -1

    def take(self, event: Event) -> None:
        """Fold one event in; one that is not as documented counts as damaged."""
        try:
            self._take(event)
        except (ValueError, OverflowError):  # a number that is none, or too large for a point
            self.num_damaged += 1

    def _take(self, event: Event) -> None:
        self.num_events += 1
        if event.writer != EVALUATOR:  # which may come long after the run
            self.first_s = min(event.time_s, self.first_s or event.time_s)
            self.last_s = max(event.time_s, self.last_s or event.time_s)
        fold = _FOLDS.get(type(event.body))
        if fold is not None:
            fold(self, event, event.body)

    def _take_nodes(self, event: Event, nodes: NodesJoined) -> None:
        self._note(event, "nodes", "; ".join(nodes.members))

    def _take_attempt(self, event: Event, begun: AttemptStarted) -> None:
        if self.attempts:
            self._note(event, "restart", f"attempt {event.attempt + 1} begins")
        attempt = Attempt(event.attempt, event.time_s, begun.ranks, begun.revision)
        self.attempts = [*self.attempts[-199:], attempt]
        if event.attempt > self._ended_attempt:
            self.outcome = {}
        self.ranks.begin(attempt.ranks)

    def _take_start(self, event: Event, start: RankStarted) -> None:
        self.ranks.start(start)
        self.is_cpu = "cuda" not in start.device
        if start.step is not None:
            self.first_step = start.step

    def _take_preparing(self, event: Event, preparing: Preparing) -> None:
        self.doing = _short(preparing.what)

    def _take_step(self, event: Event, step: Step) -> None:
        self._go_back(event, step.step)
        if step.step is not None:
            self.step = step.step
        self.epoch = step.epoch
        self.doing = ""
        if step.total_steps is not None:
            self.total_steps = step.total_steps
        self.memory_peak_bytes = max(self.memory_peak_bytes, step.memory_bytes or 0)
        at = self.step or 0
        for name, value in scalars(event).items():
            self._draw(name, at, event.time_s, value)
        if step.data_wait is not None:
            self._draw("speed/data_wait", at, event.time_s, step.data_wait)

    def _go_back(self, event: Event, step: int | None) -> None:
        """A later attempt begins where the checkpoint was: what came after it is done again."""
        if event.attempt > self._attempt:
            if step is not None and self.step is not None and step <= self.step:
                for name, series in self.series.items():
                    if not name.startswith("system/"):
                        series.cut_after(step - 1)
            self._attempt = event.attempt

    def _take_skipped(self, event: Event, skipped: Skipped) -> None:
        self.num_skipped = skipped.total

    def _take_usage(self, event: Event, usage: Usage) -> None:
        self.ranks.use(usage)
        at = usage.step if usage.step is not None else self.step or 0
        for name, value in scalars(event).items():
            self._draw(name, at, event.time_s, value, _SYSTEM_POINTS)
        if usage.gpu_temperature_c is not None:
            name = f"system/rank_{usage.rank}/gpu_temperature_c"
            self._draw(name, at, event.time_s, usage.gpu_temperature_c, _SYSTEM_POINTS)

    def _take_pace(self, event: Event, pace: Pace) -> None:
        self.ranks.pace(event.time_s, pace)

    def _take_evaluate(self, event: Event, found: Evaluate) -> None:
        step = found.step if found.step is not None else self.step or 0
        self.metrics = dict(found.metrics)
        for name, value in self.metrics.items():
            self._draw(f"test/{name}", step, event.time_s, value)
        if found.is_best:
            self.best = {"step": step, "metrics": self.metrics}

    def _take_evaluated(self, event: Event, said: Evaluated) -> None:
        found = Evaluation(
            time_s=event.time_s,
            step=said.step,
            weights=_short(said.weights),
            metrics={_short(name): value for name, value in said.metrics.items()},
            benchmark=_short(said.benchmark) if said.benchmark else None,
        )
        self.evaluations = [*self.evaluations[1 - _MOST_EVALUATIONS :], found]
        self._note(event, "evaluate", str(found))

    def _take_checkpoint(self, event: Event, saved: Checkpoint) -> None:
        self.saved_step, self.num_saves = saved.step, self.num_saves + 1
        size = f", {format_bytes(saved.bytes)}" if saved.bytes else ""
        self._note(event, "checkpoint", f"checkpoint of step {saved.step}{size}")

    def _take_samples(self, event: Event, made: Samples) -> None:
        if event.time_s < self.samples_s:
            return
        self.samples_s = event.time_s
        self.samples = [
            {name: _short(text) for name, text in vars(sample).items()}
            for sample in made.samples[:20]
        ]

    def _take_media(self, event: Event, made: MediaWritten) -> None:
        media = Media(
            step=made.step or 0,
            name=_short(made.name),
            file=made.file,
            caption=_short(made.caption),
            time_s=event.time_s,
        )
        self.media = [*self.media[1 - _MOST_MEDIA :], media]

    def _take_finding(self, event: Event, said: FindingMade) -> None:
        finding = said.finding
        self._say(finding, event.time_s)
        self.ranks.blame(finding)
        self._note(event, "finding", f"{finding.slug}: {finding.what}")

    def _say(self, told: Finding, time_s: float) -> None:
        finding = {name: _short(text) for name, text in vars(told).items()}
        for said in self.findings:
            if said.finding == finding:
                said.count, said.time_s = said.count + 1, time_s
                return
        self.findings = [*self.findings[1 - _MOST_FINDINGS :], Said(finding, time_s)]

    def _take_dropped(self, event: Event, dropped: Dropped) -> None:
        self._note(event, "revision", f"{dropped.rung} is off: {dropped.reason}")

    def _take_hang(self, event: Event, hang: Hang) -> None:
        who = f"rank {hang.rank}" if hang.rank is not None else "the ranks"
        self._note(event, "hang", f"{who} did not move at {hang.place}")

    def _take_stop(self, event: Event, stop: StopAsked) -> None:
        self._note(event, "stop", stop.reason)

    def _take_revision(self, event: Event, revision: RevisionMade) -> None:
        changes = ", ".join(
            f"{name} {change.old} -> {change.new}" for name, change in revision.changes.items()
        )
        text = f"plan revision {revision.revision}: {changes}: {revision.reason}"
        self._note(event, "revision", text)

    def _take_death(self, event: Event, death: Death) -> None:
        code = death.exit_code
        how = f"killed by {signal_name(-code)}" if code < 0 else f"exit code {code}"
        self.ranks[death.rank].exit_code = code
        if not death.was_ended:
            self._note(event, "death", f"rank {death.rank} died: {how}")

    def _take_exported(self, event: Event, exported: Exported) -> None:
        self._note(event, "export", f"exported to {exported.path}")

    def _take_outcome(self, event: Event, end: Outcome) -> None:
        if event.writer != "supervisor":
            return
        names = ("status", "step", "reason", "exit_code")
        self.outcome = {name: getattr(end, name) for name in names}
        self._ended_attempt = event.attempt
        if self.attempts:
            self.attempts[-1].last_s = event.time_s
        for finding in end.findings:
            self._say(finding, event.time_s)
        status, reason = end.status, end.reason
        self._note(event, "outcome", status if reason in ("", status) else f"{status}: {reason}")

    def _draw(
        self, name: str, step: float, time_s: float, value: float, points: int | None = None
    ) -> None:
        series = self.series.get(name)
        if series is None:
            if len(self.series) >= _MOST_SERIES:
                return
            series = self.series[name[:200]] = Series(points) if points else Series()
        series.add(float(step), time_s, float(value))

    def _note(self, event: Event, kind: str, text: str) -> None:
        note = Note(event.time_s, kind, _short(text), event.step)
        if len(self.notes) >= _MOST_NOTES:
            self.notes = [*self.notes[:50], *self.notes[51:]]  # how it began stays
        self.notes.append(note)

    @property
    def num_restarts(self) -> int:
        return max(0, len(self.attempts) - 1)

    def rank_seconds(self, now_s: float | None) -> float:
        """Time that ranks were there, over all attempts; `now_s` while it runs."""
        total = 0.0
        for this, after in zip(self.attempts, [*self.attempts[1:], None], strict=True):
            end = after.began_s if after is not None else this.last_s or now_s or self.last_s
            total += this.ranks * max(0.0, (end or this.began_s) - this.began_s)
        return total


def _short(text: str) -> str:
    return text[:_LONGEST]


_FOLDS: dict[type[Body], Callable[[RunState, Event, Any], None]] = {
    AttemptStarted: RunState._take_attempt,
    NodesJoined: RunState._take_nodes,
    RankStarted: RunState._take_start,
    Preparing: RunState._take_preparing,
    Step: RunState._take_step,
    Skipped: RunState._take_skipped,
    Usage: RunState._take_usage,
    Pace: RunState._take_pace,
    Evaluate: RunState._take_evaluate,
    Evaluated: RunState._take_evaluated,
    Checkpoint: RunState._take_checkpoint,
    Samples: RunState._take_samples,
    MediaWritten: RunState._take_media,
    Exported: RunState._take_exported,
    FindingMade: RunState._take_finding,
    Dropped: RunState._take_dropped,
    Hang: RunState._take_hang,
    StopAsked: RunState._take_stop,
    RevisionMade: RunState._take_revision,
    Death: RunState._take_death,
    Outcome: RunState._take_outcome,
}
