"""All that a run directory says of how its ranks ended: events, logs, plan and job. Reads, judges
nothing; what is missing or damaged is left out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from phalanx.diagnose.logs import LogLine, of_attempt, read_tail
from phalanx.errors import Finding
from phalanx.run.directory import RunDirectory
from phalanx.run.event_kinds import AttemptStarted, Body, Death, Outcome
from phalanx.run.events import Event, parse, read_events
from phalanx.run.plan_record import choice_in, read_plan_record
from phalanx.run.reading import read_json, read_yaml

T = TypeVar("T", bound=Body)
_OTHER_LOGS = ("nccl-rank-", "slurm", "kernel", "dmesg")


@dataclass(frozen=True, kw_only=True)
class RankEnd:
    """How one rank ended in one attempt, as far as that is known."""

    rank: int
    exit_code: int | None = None
    """Negative: killed by that signal; None: not recorded."""
    order: int = 0
    """Place among the deaths of the attempt, as they were noticed."""
    time_s: float | None = None
    """When the rank itself said that it failed."""
    phase: str | None = None
    step: int | None = None
    finding: Finding | None = None
    """What the rank said of itself."""
    has_outcome: bool = False
    lines: list[LogLine] = field(default_factory=list)
    """What it printed in that attempt, and what it wrote as its outcome."""
    was_ended: bool = False
    """By us, because another one had died before."""
    oom_kills: int | None = None
    """Processes the kernel ended here for want of memory during the attempt; None: not told."""

    @property
    def is_bad(self) -> bool:
        return bool(self.exit_code) or (self.has_outcome and self.finding is not None)


class Scene:
    """A run directory, read once."""

    def __init__(self, run: RunDirectory, *, is_brief: bool = False) -> None:
        """`is_brief`: only the end of the events, which are many in a long run."""
        self.run = run
        self._is_brief = is_brief

    @cached_property
    def events(self) -> list[Event]:
        if not self.run.events.is_dir():
            return []
        return _last_events(self.run) if self._is_brief else read_events(self.run.events)

    @cached_property
    def plan(self) -> dict[str, Any]:
        return read_plan_record(self.run)

    @cached_property
    def machine(self) -> dict[str, Any]:
        return read_json(self.run.machine_file)

    @cached_property
    def source(self) -> dict[str, Any]:
        return read_json(self.run.source_file)

    @cached_property
    def launched(self) -> dict[str, Any]:
        """What was asked of `phalanx launch`; empty for a job."""
        return read_json(self.run.launch_file)

    @cached_property
    def job(self) -> dict[str, Any]:
        return read_yaml(self.run.job_file)

    @property
    def is_script(self) -> bool:
        return not self.run.plan_file.is_file()

    def planned(self, name: str) -> Any:
        """A choice of the plan; None where there is none."""
        return choice_in(self.plan, name)

    @cached_property
    def last_attempt(self) -> int:
        return max((event.attempt for event in self.events), default=0)

    @property
    def world(self) -> int:
        if started := self.of_kind(AttemptStarted):
            return started[-1].ranks
        return max(self._logs, default=-1) + 1

    def outcome(self) -> Outcome | None:
        """What the command wrote as the end of the run; None while it runs, or when it was
        killed."""
        ends = (
            event
            for event in reversed(self.events)
            if isinstance(event.body, Outcome)
            and event.writer == "supervisor"
            and event.attempt == self.last_attempt
        )
        begun = max((event.time_s for event in self.events_of(AttemptStarted)), default=0.0)
        end = next((event.body for event in ends if event.time_s >= begun), None)
        return end if isinstance(end, Outcome) else None

    def events_of(self, kind: type[Body], attempt: int | None = None) -> list[Event]:
        """Return the events of a kind, of one attempt or of all."""
        return [
            event
            for event in self.events
            if isinstance(event.body, kind) and (attempt is None or event.attempt == attempt)
        ]

    def of_kind(self, kind: type[T], attempt: int | None = None) -> list[T]:
        """Return what the events of a kind say, of one attempt or of all."""
        return [
            event.body
            for event in self.events
            if isinstance(event.body, kind) and (attempt is None or event.attempt == attempt)
        ]

    @cached_property
    def _logs(self) -> dict[int, list[LogLine]]:
        found = {}
        for path in self.run.logs.glob("rank-*.log"):
            number = path.stem.removeprefix("rank-")
            if number.isdigit():
                found[int(number)] = read_tail(path, self.run.path)
        return found

    @cached_property
    def other_lines(self) -> list[LogLine]:
        """Logs of nobody's own: NCCL's, a scheduler's, the kernel's, where they are in `logs`."""
        paths = sorted(p for p in self.run.logs.glob("*") if p.name.startswith(_OTHER_LOGS))
        return [line for path in paths for line in read_tail(path, self.run.path)[-2000:]]

    def ends(self, attempt: int) -> list[RankEnd]:
        """How the ranks of an attempt ended, by rank."""
        said = {
            int(event.writer.removeprefix("rank-")): event
            for event in self.events_of(Outcome, attempt)
            if event.writer.removeprefix("rank-").isdigit()
        }
        deaths = self.of_kind(Death, attempt)
        order = {death.rank: place for place, death in enumerate(deaths)}
        by_rank = {death.rank: death for death in deaths}
        ranks = sorted({*said, *by_rank, *self._logs, *range(self.world)})
        return [
            self._end(rank, attempt, said.get(rank), by_rank.get(rank), order.get(rank, 0))
            for rank in ranks
        ]

    def death_lines(self, rank: int) -> list[LogLine]:
        """Where the supervisor wrote down how a rank ended, in words."""
        lines = read_tail(self.run.events / "supervisor.jsonl", self.run.path)
        mine = [x for x in lines if '"kind":"death"' in x.text and f'"rank":{rank},' in x.text]
        for line in mine[-1:]:
            event = parse(line.text.encode(errors="replace"))
            if event is not None and isinstance(event.body, Death):
                said = f"rank {rank} ended with exit code {event.body.exit_code}"
                kills = event.body.oom_kills
                counted = "" if kills is None else f"; {kills} kills for want of memory"
                return [replace(line, text=said + counted)]
        return []

    def _end(
        self, rank: int, attempt: int, said: Event | None, death: Death | None, order: int
    ) -> RankEnd:
        end = said.body if said is not None and isinstance(said.body, Outcome) else None
        failure = end if end is not None and end.status == "failed" else None
        where = failure or death
        lines = of_attempt(self._logs.get(rank, []), attempt)
        if failure is not None:
            lines = [*lines, *self._said_in_events(failure, rank)]
        return RankEnd(
            rank=rank,
            exit_code=death.exit_code if death is not None else None,
            order=order,
            time_s=said.time_s if said is not None and failure is not None else None,
            phase=where.phase if where is not None else None,
            step=where.step if where is not None else None,
            finding=failure.findings[0] if failure is not None and failure.findings else None,
            has_outcome=said is not None,
            lines=lines,
            was_ended=death is not None and death.was_ended,
            oom_kills=death.oom_kills if death is not None else None,
        )

    def _said_in_events(self, said: Outcome, rank: int) -> Iterable[LogLine]:
        """The outcome as a line: the log itself may be what could not be written."""
        tail = read_tail(self.run.events / f"rank-{rank}.jsonl", self.run.path)
        number = next((x.line for x in reversed(tail) if '"kind":"outcome"' in x.text), 0)
        name = f"events/rank-{rank}.jsonl"
        for finding in said.findings:
            for text in finding.what.split("\n"):
                yield LogLine(name, number, text.partition(" failed: ")[2] or text)


def _last_events(run: RunDirectory) -> list[Event]:
    lines = (line for path in run.events.glob("*.jsonl") for line in read_tail(path, run.path))
    found = (parse(line.text.encode(errors="replace")) for line in lines)
    return sorted((event for event in found if event is not None), key=lambda event: event.time_s)
