"""Owns a run from start to end, of a job or of a launched script: starts the ranks, follows their
events, stops them when asked, ends those that hang, starts them again.

for each attempt: start the ranks, follow their events, judge -> outcome
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from signal import SIGKILL, SIGUSR1, Signals

from phalanx.errors import Finding
from phalanx.run.attempt import claim_attempt, read_attempt
from phalanx.run.directory import RunDirectory
from phalanx.run.event_kinds import FindingMade, Outcome, Step, StopAsked, Usage
from phalanx.run.events import Event, EventReader, EventWriter
from phalanx.supervise.hang import Hung, hang_event, hang_finding, write_hang
from phalanx.supervise.place import Ranks
from phalanx.supervise.post_mortem import PostMortem
from phalanx.supervise.signals import hearing_stops
from phalanx.supervise.sinks import SinkProcess
from phalanx.supervise.workload import AttemptEnd, Judgement, Meters, Workload

_EVENTS_LAG_S = 30.0  # a network file system may show what other nodes wrote late
_WITNESSES_S = 8.0  # for every rank to say where it is stuck


class Supervisor:
    """Runs one run directory to its end."""

    def __init__(
        self, run: RunDirectory, workload: Workload, *, on_event: Callable[[Event], None]
    ) -> None:
        self._run = run
        self._workload = workload
        self._on_event = on_event
        self._events = EventWriter(run.events, "supervisor")
        self._reader = EventReader(run.events)
        self._post_mortem = PostMortem(run)
        self._asked: list[Signals] = []
        self._hung: Finding | None = None
        self._step: int | None = None
        """The last one logged in this attempt."""
        self._sinks: SinkProcess | None = None
        claimed = read_attempt(run.path)
        last = max((event.attempt for event in self._reader.read()), default=-1)
        self._first = max(last, claimed.number if claimed is not None else -1) + 1
        """The first attempt that this supervisor starts."""
        self.restarts = 0

    def run(self) -> Outcome:
        """Start the ranks, and start them again when one was killed, until the run ends."""
        # SIGUSR1 is a scheduler's way to ask.
        with hearing_stops(self._asked, SIGUSR1):
            self._claim(self._first)
            try:
                if (facts := self._workload.place.facts()) is not None:
                    self._events.write(facts)
                return self._attempts()
            finally:
                try:
                    if self._sinks is not None:
                        self._write_findings(self._sinks.close())
                    self._hand_on()
                finally:
                    self._events.close()

    def _claim(self, attempt: int) -> None:
        """Make the run that of a new attempt: a rank of an older one stops at its next write."""
        hosts = self._workload.place.hosts
        self._events.begin(claim_attempt(self._run.path, attempt, hosts))

    def _attempts(self) -> Outcome:
        attempt, workload = self._first, self._workload
        while True:
            if attempt != self._events.attempt:
                self._claim(attempt)
            self._events.write(workload.begin(attempt, self._events))
            self._hung = self._step = None
            with workload.ranks(attempt) as ranks:
                ranks.start()
                if self._sinks is None and workload.sinks is not None:
                    self._sinks = SinkProcess(self._run, workload.sinks)
                self._follow(ranks, workload.meters())
            end = AttemptEnd(ranks, self._asked, self._hung)
            decided = workload.go_on(end, self._explain(self._judge(end), ranks))
            if isinstance(decided, Outcome):
                self._events.write(decided)
                return decided
            self.restarts += decided.is_restart
            self._write_findings(decided.findings)
            attempt += 1

    def _follow(self, ranks: Ranks, meters: Meters) -> None:
        """Pass events on until the ranks are gone."""
        forwarded = 0
        gone_s: float | None = None
        try:
            while True:
                is_running = ranks.is_running
                self._workload.look(ranks)
                self._hand_on()
                self._measure(ranks, meters)
                if not is_running:
                    self._events.check()
                    gone_s = gone_s or time.monotonic()
                    is_late = time.monotonic() - gone_s > _EVENTS_LAG_S
                    if is_late or self._workload.is_complete(ranks):
                        return
                elif self._hung is None and meters.hang is not None:
                    hung = meters.hang.look(ranks.beats)
                    if hung is not None:
                        self._end_hung(ranks, hung)
                self._asked += ranks.asked[len(self._asked) :]
                # Ranks that are not there yet get it at the next turn.
                if len(self._asked) > forwarded and self._forward(ranks):
                    forwarded = len(self._asked)
                ranks.wait(self._workload.poll_s)
        finally:
            meters.usage.close()

    def _hand_on(self) -> None:
        """Pass on what was written since the last look, by all writers."""
        for event in self._reader.read():
            if not self._first <= event.attempt <= self._events.attempt:
                continue  # of ranks that another command has started
            is_current = event.attempt == self._events.attempt
            if isinstance(event.body, Step) and is_current and event.body.step is not None:
                self._step = event.body.step
            self._on_event(event)
            self._workload.take(event, is_current=is_current)

    def _measure(self, ranks: Ranks, meters: Meters) -> None:
        samples: list[Usage] = [*meters.usage.look(ranks.pids), *ranks.take_usage()]
        for sample in samples:
            self._events.write(replace(sample, step=self._step))
        now = time.monotonic()
        if meters.pace is not None:
            for pace in meters.pace.look(ranks.beats, now):
                self._events.write(pace)
        if meters.stragglers is not None and ranks.is_running:
            self._write_findings(meters.stragglers.look(ranks.beats, now))

    def _forward(self, ranks: Ranks) -> bool:
        """Ask the ranks to stop; False when they cannot be asked yet."""
        number, said = self._workload.stop(self._asked)
        is_heard = ranks.signal(number)
        if is_heard:
            self._events.write(StopAsked(reason=said))
        return is_heard

    def _end_hung(self, ranks: Ranks, hung: Hung) -> None:
        """Ask every rank where it is stuck, write that down, and end them all: those that wait for
        the culprit do not listen."""
        beats = ranks.beats
        ranks.ask_where()
        deadline = time.monotonic() + _WITNESSES_S
        while ranks.witnesses is None and ranks.is_running and time.monotonic() < deadline:
            ranks.wait(self._workload.poll_s)
        witnesses = ranks.witnesses or []
        file = self._run.hang_file(self._events.attempt)
        write_hang(file, beats, witnesses)
        event = hang_event(hung, beats, witnesses, file)
        self._events.write(event)
        self._hung = hang_finding(event)
        ranks.signal(SIGKILL)

    def _judge(self, end: AttemptEnd) -> Judgement:
        if len(self._asked) < 2:
            return self._workload.judge(end)
        return Judgement(self._workload.interrupted())

    def _explain(self, judged: Judgement, ranks: Ranks) -> Judgement:
        outcome = judged.outcome
        found = self._post_mortem.examine(
            ranks.deaths, self._events.attempt, outcome.findings, self._events.write, ranks.beats
        )
        if found == outcome.findings:
            return judged
        return replace(judged, outcome=replace(outcome, reason=found[0].what, findings=found))

    def _write_findings(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            self._events.write(FindingMade(finding=finding))
