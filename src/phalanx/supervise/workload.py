"""What a supervisor runs: a job or a launched script. How its ranks are started and read, how an
end is judged, and whether another attempt can help."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from signal import Signals
from typing import Protocol

from phalanx.errors import Finding
from phalanx.run.event_kinds import AttemptStarted, Outcome
from phalanx.run.events import Event, EventWriter
from phalanx.run.sinks.process import SinkSettings
from phalanx.supervise.hang import HangWatch
from phalanx.supervise.pace import PaceMeter
from phalanx.supervise.place import Place, Ranks
from phalanx.supervise.rank_usage import RankUsage
from phalanx.supervise.straggler import StragglerWatch


@dataclass(frozen=True)
class Meters:
    """What looks at the ranks of one attempt; None where they give no heartbeats."""

    usage: RankUsage
    pace: PaceMeter | None = None
    stragglers: StragglerWatch | None = None
    hang: HangWatch | None = None


@dataclass(frozen=True)
class AttemptEnd:
    """The ranks of an attempt are gone."""

    ranks: Ranks
    asked: list[Signals]
    """How the run was asked to stop."""
    hung: Finding | None = None
    """That they hung, and were ended for that."""


@dataclass(frozen=True)
class Judgement:
    """How an attempt ended."""

    outcome: Outcome
    can_restart: bool = False
    """Whether another attempt can help."""


@dataclass(frozen=True)
class Again:
    """The ranks start again."""

    findings: list[Finding] = field(default_factory=list)
    """Why."""
    is_restart: bool = True
    """False when another plan is tried, which ends by itself."""


class Workload(Protocol):
    """One job or script, over all its attempts."""

    poll_s: float
    """Longest time between two looks at the ranks."""
    sinks: SinkSettings | None
    """Curves for other tools; None for none."""

    @property
    def place(self) -> Place: ...

    def begin(self, attempt: int, events: EventWriter) -> AttemptStarted:
        """Make ready for an attempt."""

    def ranks(self, attempt: int) -> AbstractContextManager[Ranks]:
        """Return the ranks of an attempt, to be started; nothing of them is left afterwards."""

    def meters(self) -> Meters: ...

    def take(self, event: Event, *, is_current: bool) -> None:
        """Note an event of this run; `is_current`: of this attempt."""

    def look(self, ranks: Ranks) -> None:
        """Look for news that are no events."""

    def is_complete(self, ranks: Ranks) -> bool:
        """Return True if all that the ranks, which are gone, had written was seen."""

    def stop(self, asked: list[Signals]) -> tuple[Signals, str]:
        """Return the signal that ranks get, and what is said of it."""

    def interrupted(self) -> Outcome:
        """Return how a run ended that a second signal has ended."""

    def judge(self, end: AttemptEnd) -> Judgement:
        """Return how an attempt ended."""

    def go_on(self, end: AttemptEnd, judged: Judgement) -> Again | Outcome:
        """Return how the run ends, or that it does not."""
