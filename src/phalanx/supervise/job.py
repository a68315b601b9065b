"""A job as a supervisor runs it: ranks that follow a plan, write events of their own and say where
they are, a plan that is revised on the way, and restarts from the last checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from signal import SIGKILL, SIGTERM, Signals
from typing import Protocol

from phalanx.errors import ExitCode, Finding
from phalanx.job.schema import Hang as HangLimits
from phalanx.job.schema import Job
from phalanx.planner.schema.plan import Plan
from phalanx.prepare.launcher import Launcher
from phalanx.prepare.rank_environment import rank_environment
from phalanx.prepare.validated_before import keep_comparison
from phalanx.run.directory import RunDirectory
from phalanx.run.event_kinds import (
    AttemptStarted,
    Checkpoint,
    Compared,
    Dropped,
    FindingMade,
    Outcome,
)
from phalanx.run.events import Event, EventWriter
from phalanx.run.launching import Share
from phalanx.run.purpose import Measure, Record, read_purpose
from phalanx.run.sinks.process import SinkSettings
from phalanx.supervise import outcomes
from phalanx.supervise.hang import HangWatch, watch_for
from phalanx.supervise.outcomes import RankEnd
from phalanx.supervise.pace import PaceMeter
from phalanx.supervise.place import Order, Place, Ranks, RanksLostError, ThisMachine
from phalanx.supervise.rank_group import RankGroup
from phalanx.supervise.rank_usage import RankUsage, driver_numbers
from phalanx.supervise.recovery import (
    Revision,
    does_not_fit,
    find_memory_failure,
    revise_plan,
    without_rung,
)
from phalanx.supervise.sinks import sinks_of
from phalanx.supervise.straggler import StragglerWatch
from phalanx.supervise.workload import Again, AttemptEnd, Judgement, Meters

_STOPPING = "stopping: the step is finished and saved; once more (Ctrl-C) ends at once"


class Recovery(Protocol):
    """Gets a run over the loss of machines."""

    wait_s: float
    """How long lost machines are waited for, on either side."""

    def recover(
        self, plan: Plan, tell: Callable[[Finding], object], is_stopped: Callable[[], bool]
    ) -> tuple[bool, Revision | None]:
        """Return True if ranks can start again, and the plan for the machines that are left if
        that is another one."""


class JobWorkload:
    """The ranks of one plan and its revisions."""

    poll_s = 0.1

    def __init__(
        self,
        run: RunDirectory,
        plan: Plan,
        launcher: Launcher,
        *,
        job: Job | None = None,
        has_sinks: bool = False,
        on_plan: Callable[[Plan], None] = lambda plan: None,
        place: Place | None = None,
        recovery: Recovery | None = None,
    ) -> None:
        """`job` says how often ranks are started again, when they hang, and with `has_sinks` which
        curves are written for other tools; without it: never. `place`: where ranks are started,
        None for this machine."""
        self.place: Place = place or ThisMachine()
        self.sinks: SinkSettings | None = None
        if job is not None and has_sinks:
            self.sinks = sinks_of(job.logging)
        self._run = run
        self._plan = plan
        self._purpose = read_purpose(run)
        self._launcher = launcher
        self._max_restarts = job.max_restarts if job is not None else 0
        self._watch = (
            watch_for(job, plan) if job is not None else HangWatch(HangLimits(after_s=None))
        )
        self._stragglers = StragglerWatch(plan)
        self._on_plan = on_plan
        self._recovery = recovery
        self._ends: list[RankEnd] = []
        self._writers: dict[str, int] = {}
        self._saved_step: int | None = None
        self._saved_before: int | None = None
        self._restarts = 0
        """In a row, without a newer checkpoint."""

    @property
    def _world(self) -> int:
        return self._plan.devices.ranks.value

    def begin(self, attempt: int, events: EventWriter) -> AttemptStarted:
        self._events = events
        self._ends, self._writers = [], {f"rank-{rank}": rank for rank in range(self._world)}
        self._watch.new_attempt()
        self._stragglers.new_attempt(self._plan)
        return AttemptStarted(ranks=self._world, revision=self._plan.revision)

    @contextmanager
    def ranks(self, attempt: int) -> Iterator[Ranks]:
        place, plan = self.place, self._plan
        share = Share(
            run=self._run.path,
            attempt=attempt,
            ranks=self._world // place.count,
            nodes=place.count,
            address=place.address,
        )
        environment = rank_environment(self._run, plan, place.settings)
        wait_s = self._recovery.wait_s if self._recovery is not None else 0.0
        local = RankGroup(self._launcher, share, environment)
        ranks = place.spread(local, share, Order(plan=plan.digest(), wait_s=wait_s))
        try:
            yield ranks
        finally:
            ranks.close()

    def meters(self) -> Meters:
        return Meters(
            RankUsage(driver_numbers(self._run, self._plan)),
            PaceMeter(self._plan),
            self._stragglers,
            self._watch,
        )

    def take(self, event: Event, *, is_current: bool) -> None:
        match event.body:
            case Outcome() if is_current and event.writer in self._writers:
                rank = self._writers[event.writer]
                self._ends.append(RankEnd(rank, event.time_s, event.body))
            case Dropped():
                # A restart and a resumed run do not try it again. The ranks go on.
                self._change(without_rung(self._plan, event.body))
            case Compared():
                keep_comparison(self._plan, self._run)
            case Checkpoint():
                self._saved_step = event.body.step

    def look(self, ranks: Ranks) -> None:
        """They write events."""

    def is_complete(self, ranks: Ranks) -> bool:
        is_late = len(self._ends) < self._world and not ranks.deaths and not ranks.error
        return self.place.count == 1 or not is_late

    def stop(self, asked: list[Signals]) -> tuple[Signals, str]:
        return (SIGTERM, _STOPPING) if len(asked) == 1 else (SIGKILL, "ending now")

    def interrupted(self) -> Outcome:
        reason = "interrupted by a second signal; the last checkpoint stands"
        return outcomes.stopped(reason, ExitCode.INTERRUPTED)

    def judge(self, end: AttemptEnd) -> Judgement:
        ranks = end.ranks
        if isinstance(ranks.error, RanksLostError):
            return Judgement(outcomes.from_finding(ranks.error.finding))
        if end.hung is not None:
            return Judgement(outcomes.from_finding(end.hung), can_restart=True)
        if ranks.error is not None:
            return Judgement(outcomes.launch_failed(ranks.error))
        memory = find_memory_failure(self._ends)
        if memory is not None:  # wins over peers that lost their connection or were ended
            return Judgement(self._out_of_memory(memory))
        killed = next((d for d in ranks.deaths if d.exit_code < 0 and not d.was_ended), None)
        if killed is not None and end.asked and killed.exit_code == -SIGTERM:
            # A rank that could not listen yet.
            return Judgement(outcomes.stopped("stopped before the first step", ExitCode.STOPPED))
        if killed is not None:
            return Judgement(outcomes.killed(self._run, killed), can_restart=True)
        failed = outcomes.first_failure(self._ends)
        gone = outcomes.left_in_silence(self._ends, ranks.deaths, self._world)
        if gone is not None and (failed is None or failed.from_outside):
            return Judgement(outcomes.left(self._run, gone))
        if failed is not None:
            is_cured = failed.from_outside is not None
            return Judgement(outcomes.of_run(failed), can_restart=is_cured)
        return Judgement(outcomes.of_run(self._ends[0].outcome))

    def go_on(self, end: AttemptEnd, judged: Judgement) -> Again | Outcome:
        outcome, can_restart = judged.outcome, judged.can_restart
        if self._revise(end):
            return Again(is_restart=False)
        if isinstance(end.ranks.error, RanksLostError) and not end.asked:
            can_restart = self._get_over_loss(end)
        if self._saved_step != self._saved_before:  # it has come further than the last time
            self._saved_before, self._restarts = self._saved_step, 0
        if not can_restart or end.asked:
            return outcome
        if self._restarts < self._max_restarts and self._launcher.can_restart:
            self._restarts += 1
            limit = self._max_restarts
            return Again([outcomes.restart_finding(outcome, self._restarts, limit)])
        if self._restarts:
            return outcomes.crash_loop(outcome, self._restarts, self._saved_step)
        return outcome

    def _get_over_loss(self, end: AttemptEnd) -> bool:
        if self._recovery is None:
            return False
        can_continue, revision = self._recovery.recover(
            self._plan,
            lambda finding: self._events.write(FindingMade(finding=finding)),
            lambda: bool(end.asked),
        )
        if revision is not None:
            self._change(revision)
        return can_continue

    def _revise(self, end: AttemptEnd) -> bool:
        """Return True if the plan was changed so that the ranks can be started again after one of
        them ran out of memory."""
        failure = find_memory_failure(self._ends)
        if failure is None or end.asked or not self._launcher.can_restart:
            return False
        revision = self._revision_after(failure)
        if revision is None:
            return False
        self._change(revision)
        return True

    def _revision_after(self, failure: Outcome) -> Revision | None:
        """The plan that needs less memory; None where this very plan is to be measured."""
        is_measured = isinstance(self._purpose, Measure)
        return None if is_measured else revise_plan(self._plan, failure)

    def _change(self, revision: Revision) -> None:
        self._plan = revision.plan
        self._run.write_plan(self._plan.to_json())
        self._events.write(revision.event())
        self._on_plan(self._plan)

    def _out_of_memory(self, failure: Outcome) -> Outcome:
        outcome = outcomes.of_run(failure)
        if self._revision_after(failure) is not None:  # tried next, unless a signal came
            return outcome
        is_recorded = isinstance(self._purpose, Record)
        finding = does_not_fit(self._plan, failure, is_fp64_needed=is_recorded)
        return replace(outcome, reason=finding.what, findings=[finding])
