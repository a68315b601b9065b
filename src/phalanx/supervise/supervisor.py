"""Owns a run from start to end: starts the ranks, follows their events, restarts, stops.

for each attempt: start the ranks, follow their events, judge -> outcome
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import replace

from phalanx.errors import ExitCode, Finding
from phalanx.planner.schema.plan import Plan
from phalanx.prepare.launcher import Launcher
from phalanx.prepare.validated_before import keep_comparison
from phalanx.run.attempt import Attempt, claim_attempt, read_attempt
from phalanx.run.directory import RunDirectory
from phalanx.run.events import Event, EventReader, EventWriter
from phalanx.run.purpose import Measure, Record, read_purpose
from phalanx.run.sinks.process import SinkSettings
from phalanx.supervise import outcomes
from phalanx.supervise.hang import HangWatch, Hung, hang_event, hang_finding, write_hang
from phalanx.supervise.outcomes import Outcome
from phalanx.supervise.pace import PaceMeter
from phalanx.supervise.place import Place, Ranks, RanksLostError, ThisMachine
from phalanx.supervise.post_mortem import PostMortem
from phalanx.supervise.rank_usage import RankUsage
from phalanx.supervise.recovery import (
    Revision,
    does_not_fit,
    find_memory_failure,
    revise_plan,
    without_rung,
)
from phalanx.supervise.signals import hearing_stops
from phalanx.supervise.sinks import SinkProcess
from phalanx.supervise.straggler import StragglerWatch

_POLL_S = 0.1
_EVENTS_LAG_S = 30.0  # a network file system may show what other nodes wrote late
_WITNESSES_S = 8.0  # for every rank to say where it is stuck
_STOPPING = "stopping: the step is finished and saved; once more (Ctrl-C) ends at once"


class Supervisor:
    """Runs one run directory to its end."""

    def __init__(
        self,
        run: RunDirectory,
        plan: Plan,
        *,
        launcher: Launcher,
        max_restarts: int,
        watch: HangWatch,
        sinks: SinkSettings | None,
        on_event: Callable[[Event], None],
        on_plan: Callable[[Plan], None] = lambda plan: None,
        place: Place | None = None,
    ) -> None:
        """`sinks`: curves for other tools, None for none. `place`: where ranks are started, None
        for this machine."""
        self._run = run
        self._plan = plan
        self._purpose = read_purpose(run)
        self._launcher = launcher
        self._max_restarts = max_restarts
        self._sink_settings = sinks
        self._on_event = on_event
        self._on_plan = on_plan
        self._place = place or ThisMachine(launcher)
        self._post_mortem = PostMortem(run)
        self._asked: list[signal.Signals] = []
        self._group: Ranks | None = None
        self._watch = watch
        self._stragglers = StragglerWatch(plan)
        self._hung: Finding | None = None
        self._first = 0
        """The first attempt that this supervisor has started."""
        self._saved_step: int | None = None
        self._sinks: SinkProcess | None = None

    def run(self) -> Outcome:
        """Start the ranks, and start them again when one was killed, until the run ends."""
        # SIGUSR1 is a scheduler's way to ask.
        with hearing_stops(self._asked, signal.SIGUSR1):
            reader = EventReader(self._run.events)
            before = reader.read()
            claimed = read_attempt(self._run.path)
            last = max((event.attempt for event in before), default=-1)
            self._first = max(last, claimed.number if claimed is not None else -1) + 1
            events = EventWriter(self._run.events, "supervisor")
            events.begin(self._claim(self._first))
            try:
                if (facts := self._place.facts()) is not None:
                    events.write("nodes", **facts)
                return self._attempts(reader, events)
            finally:
                self._close_sinks(events)
                events.close()

    def _attempts(self, reader: EventReader, events: EventWriter) -> Outcome:
        attempt, restarts = self._first, 0
        saved_before: int | None = None
        while True:
            ranks = self._plan.devices.ranks.value
            if attempt != events.attempt:
                events.begin(self._claim(attempt))
            events.write("attempt", ranks=ranks, revision=self._plan.revision)
            self._watch.new_attempt()
            self._stragglers.new_attempt(self._plan)
            self._hung = None
            self._group = self._place.make_ranks(self._run, self._plan, attempt)
            self._group.start()
            if self._sinks is None and self._sink_settings is not None:
                self._sinks = SinkProcess(self._run, self._sink_settings)
            ends = self._follow(self._group, reader, events)
            outcome, can_restart = self._judge(self._group, ends)
            outcome = self._explain(outcome, self._group, attempt, events)
            if self._revise(ends, events):
                attempt += 1
                continue
            if isinstance(self._group.error, RanksLostError) and not self._asked:
                can_restart = self._get_over_loss(events)
            if self._saved_step != saved_before:  # it has come further than the last time
                saved_before, restarts = self._saved_step, 0
            if can_restart and self._may_restart(restarts):
                attempt, restarts = attempt + 1, restarts + 1
                finding = outcomes.restart_finding(outcome, restarts, self._max_restarts)
                events.write("finding", finding=finding.to_json())
                continue
            if can_restart and restarts and not self._asked:
                outcome = outcomes.crash_loop(outcome, restarts, self._saved_step)
            events.write(
                "outcome",
                status=outcome.status,
                step=outcome.step,
                reason=outcome.reason,
                findings=[finding.to_json() for finding in outcome.findings],
                exit_code=int(outcome.exit_code),
            )
            return outcome

    def _claim(self, attempt: int) -> Attempt:
        """Make the run that of a new attempt: a rank of an older one stops at its next write."""
        return claim_attempt(self._run.path, attempt, self._place.hosts)

    def _may_restart(self, restarts: int) -> bool:
        is_left = restarts < self._max_restarts
        return is_left and not self._asked and self._launcher.can_restart

    def _close_sinks(self, events: EventWriter) -> None:
        for finding in self._sinks.close() if self._sinks is not None else []:
            self._on_event(events.write("finding", finding=finding.to_json()))

    def _follow(self, group: Ranks, reader: EventReader, events: EventWriter) -> list[Event]:
        """Pass events on until the ranks are gone; returns how they ended."""
        ends: list[Event] = []
        writers = {f"rank-{rank}" for rank in range(self._plan.devices.ranks.value)}
        forwarded = 0
        gone_s: float | None = None
        usage, step = RankUsage(self._run, self._plan), None
        pace = PaceMeter(self._plan)
        while True:
            is_running = group.is_running
            for event in reader.read():
                if event.attempt < self._first:
                    continue  # of ranks that another command has started
                is_current = event.attempt == events.attempt
                if event.kind == "outcome" and event.writer in writers and is_current:
                    ends.append(event)  # a long run has millions of the others
                self._on_event(event)
                if event.kind == "step" and is_current:
                    step = event.data["step"]
                if event.kind == "dropped":
                    self._drop(event, events)
                if event.kind == "compared":
                    keep_comparison(self._plan, self._run)
                if event.kind == "checkpoint":
                    self._saved_step = event.data["step"]
            for sample in (*usage.look(group.pids), *group.take_usage()):
                events.write("usage", step=step, **sample)
            for record in pace.look(group.beats, time.monotonic()):
                events.write("pace", **record)
            if not is_running:
                events.check()
                gone_s = gone_s or time.monotonic()
                if not self._is_late(group, ends, gone_s):
                    usage.close()
                    return ends
            hung = self._watch.look(group.beats) if self._hung is None else None
            if hung is not None:
                self._end_hung(group, hung, events)
            for finding in self._stragglers.look(group.beats, time.monotonic()):
                events.write("finding", finding=finding.to_json())
            self._asked += [signal.SIGTERM] * (group.asked - len(self._asked))
            asked = len(self._asked)
            number = signal.SIGTERM if asked == 1 else signal.SIGKILL
            # Ranks that are not there yet get it at the next turn.
            if asked > forwarded and group.signal(number):
                forwarded = asked
                events.write("stop", reason=_STOPPING if asked == 1 else "ending now")
            group.wait(_POLL_S)

    def _end_hung(self, group: Ranks, hung: Hung, events: EventWriter) -> None:
        """Ask every rank where it is stuck, write that down, and end them all: those that wait for
        the culprit do not listen."""
        beats = group.beats
        group.ask_where()
        deadline = time.monotonic() + _WITNESSES_S
        while group.witnesses is None and group.is_running and time.monotonic() < deadline:
            group.wait(_POLL_S)
        witnesses = group.witnesses or []
        file = self._run.hang_file(events.attempt)
        write_hang(file, beats, witnesses)
        event = hang_event(hung, beats, witnesses, file)
        events.write("hang", **event)
        self._hung = hang_finding(event)
        group.signal(signal.SIGKILL)

    def _is_late(self, group: Ranks, ends: list[Event], gone_s: float) -> bool:
        """Whether ranks of another node have ended in order, and what they wrote is still to be
        seen here."""
        is_missing = (
            len(ends) < self._plan.devices.ranks.value and not group.deaths and not group.error
        )
        waited_s = time.monotonic() - gone_s
        return not self._place.is_local and is_missing and waited_s < _EVENTS_LAG_S

    def _drop(self, event: Event, events: EventWriter) -> None:
        """Write the plan without a rung that the ranks have turned off: a restart and a resumed run
        do not try it again. The ranks go on."""
        self._change(without_rung(self._plan, event), events)

    def _change(self, revision: Revision, events: EventWriter) -> None:
        self._plan = revision.plan
        self._run.write_plan(self._plan.to_json())
        events.write("revision", **revision.to_json())
        self._on_plan(self._plan)

    def _revise(self, ends: list[Event], events: EventWriter) -> bool:
        """Whether the plan was changed so that the ranks can be started again after one of them
        ran out of memory. Not counted as a restart: it ends by itself."""
        failure = find_memory_failure(ends)
        if failure is None or self._asked or not self._launcher.can_restart:
            return False
        revision = self._revision_after(failure)
        if revision is None:
            return False
        self._change(revision, events)
        return True

    def _revision_after(self, failure: Event) -> Revision | None:
        """The plan that needs less memory; None where this very plan is to be measured."""
        is_measured = isinstance(self._purpose, Measure)
        return None if is_measured else revise_plan(self._plan, failure)

    def _get_over_loss(self, events: EventWriter) -> bool:
        """Return True if the run can continue after machines were lost."""
        can_continue, revision = self._place.recover(self._plan, events, lambda: bool(self._asked))
        if revision is not None:
            self._change(revision, events)
        return can_continue

    def _judge(self, group: Ranks, ends: list[Event]) -> tuple[Outcome, bool]:
        """How an attempt ended, and whether another one can help."""
        if len(self._asked) > 1:
            reason = "interrupted by a second signal; the last checkpoint stands"
            return Outcome("stopped", ExitCode.INTERRUPTED, None, reason), False
        if isinstance(group.error, RanksLostError):
            return outcomes.from_finding(group.error.finding), False
        if self._hung is not None:
            return outcomes.from_finding(self._hung), True
        if group.error is not None:
            return outcomes.launch_failed(group.error), False
        memory = find_memory_failure(ends)
        if memory is not None:  # wins over peers that lost their connection or were ended
            return self._out_of_memory(memory), False
        killed = next((d for d in group.deaths if d.exit_code < 0 and not d.was_ended), None)
        if killed is not None and self._asked and killed.exit_code == -signal.SIGTERM:
            reason = "stopped before the first step"  # a rank that could not listen yet
            return Outcome("stopped", ExitCode.STOPPED, None, reason), False
        if killed is not None:
            return outcomes.killed(self._run, killed), True
        failed = outcomes.first_failure(ends)
        gone = outcomes.left_in_silence(ends, group.deaths, self._plan.devices.ranks.value)
        if gone is not None and (failed is None or failed.data.get("from_outside")):
            return outcomes.left(self._run, gone), False
        if failed is not None:
            return outcomes.from_event(failed), failed.data.get("from_outside") is not None
        return outcomes.from_event(ends[0]), False

    def _explain(
        self, outcome: Outcome, group: Ranks, attempt: int, events: EventWriter
    ) -> Outcome:
        found = self._post_mortem.examine(
            group.deaths, attempt, outcome.findings, events.write, group.beats
        )
        if found == outcome.findings:
            return outcome
        return replace(outcome, reason=found[0].what, findings=found)

    def _out_of_memory(self, failure: Event) -> Outcome:
        outcome = outcomes.from_event(failure)
        if self._revision_after(failure) is not None:  # tried next, unless a signal came
            return outcome
        is_recorded = isinstance(self._purpose, Record)
        finding = does_not_fit(self._plan, failure, is_fp64_needed=is_recorded)
        return replace(outcome, reason=finding.what, findings=[finding])
