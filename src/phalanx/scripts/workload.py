"""A launched script as a supervisor runs it: ranks that know nothing of Phalanx, no plan, and what
they print is all they say."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from signal import SIGKILL, SIGTERM, SIGUSR1, Signals

from phalanx.errors import ExitCode, Finding
from phalanx.run.directory import RunDirectory
from phalanx.run.event_kinds import AttemptStarted, FindingMade, Outcome, RankStarted
from phalanx.run.events import Event, EventWriter
from phalanx.run.launching import RankDeath, Share
from phalanx.run.sinks.process import SinkSettings
from phalanx.scripts.death import describe_death
from phalanx.scripts.environment import hold_port
from phalanx.scripts.events import ScriptEvents
from phalanx.scripts.ranks import ScriptRanks, TakeLine
from phalanx.scripts.request import PreparedScript
from phalanx.scripts.world import judge_ranks
from phalanx.supervise.outcomes import from_finding, stopped
from phalanx.supervise.place import Order, Place, Ranks, RanksLostError, RankStart, ThisMachine
from phalanx.supervise.rank_usage import RankUsage
from phalanx.supervise.workload import Again, AttemptEnd, Judgement, Meters

_LONG_S = 600.0  # ranks that lived so long had begun, also when their output says nothing
_QUIET_S = 60.0  # without a loss in the output: a script that prints none has its GPUs by then
_USAGE = 2  # argparse's exit code: the same words fail again


class ScriptWorkload:
    """The ranks of one script."""

    poll_s = 0.05

    def __init__(
        self,
        run: RunDirectory,
        prepared: PreparedScript,
        *,
        on_line: TakeLine,
        place: Place | None = None,
    ) -> None:
        self.place: Place = place or ThisMachine()
        self.sinks: SinkSettings | None = SinkSettings(tensorboard=prepared.request.tensorboard)
        self._run = run
        self._prepared = prepared
        self._on_line = on_line
        self._barren = 0
        """Attempts in a row that ended before the first step."""
        self._restarts = 0
        self._step: int | None = None

    def begin(self, attempt: int, events: EventWriter) -> AttemptStarted:
        self._events = events
        self._read = ScriptEvents(events, self._prepared.request.results, self._run.path)
        self._began_s = time.monotonic()
        self._is_start_told = self._is_judged = self._is_looked_at = False
        self._known: set[str] = set()
        self._early: list[tuple[int, str]] = []
        """Lines that ranks printed before those of all nodes had started."""
        return AttemptStarted(ranks=self._prepared.world)

    @contextmanager
    def ranks(self, attempt: int) -> Iterator[Ranks]:
        place, prepared = self.place, self._prepared
        with hold_port(place.address) as port:
            share = Share(
                run=self._run.path,
                attempt=attempt,
                ranks=prepared.ranks,
                nodes=prepared.request.nodes,
                address=place.address,
                port=port.getsockname()[1],
            )
            ranks = place.spread(ScriptRanks(prepared, share, self._hear_line), share, Order())
            try:
                yield ranks
            finally:
                ranks.close()

    def meters(self) -> Meters:
        return Meters(RankUsage(self._prepared.gpus))

    def take(self, event: Event, *, is_current: bool) -> None:
        """All events are written here."""

    def look(self, ranks: Ranks) -> None:
        if not self._is_start_told and ranks.starts is not None:
            self._is_start_told = True
            self._tell_start(ranks.starts)
        if self._is_start_told or not ranks.is_running:
            for rank, text in self._early:
                self._read.take(rank, text)
            self._early = []
        if not ranks.is_running:
            self._read.end()
        else:
            self._read.look()
            self._judge_world(ranks)
        self._step = self._read.step if self._read.step is not None else self._step

    def is_complete(self, ranks: Ranks) -> bool:
        return True

    def stop(self, asked: list[Signals]) -> tuple[Signals, str]:
        first = SIGTERM if asked[0] == SIGUSR1 else asked[0]
        number = first if len(asked) == 1 else SIGKILL
        once_more = "; once more (Ctrl-C) ends them at once"
        said = f"{number.name} is passed on to the ranks"
        return number, said + (once_more if len(asked) == 1 else "")

    def interrupted(self) -> Outcome:
        return stopped("interrupted by a second signal", ExitCode.INTERRUPTED, self._step)

    def judge(self, end: AttemptEnd) -> Judgement:
        outcome, can_restart = self._judge(end)
        return Judgement(replace(outcome, step=self._step), can_restart)

    def _judge(self, end: AttemptEnd) -> tuple[Outcome, bool]:
        asked = end.asked[0] if end.asked else None
        if asked == SIGUSR1:
            reason = "stopped by SIGUSR1: the ranks were told with SIGTERM"
            return stopped(reason, ExitCode.STOPPED), False
        if isinstance(end.ranks.error, RanksLostError):
            return from_finding(end.ranks.error.finding), False
        if end.ranks.error is not None:
            raise end.ranks.error
        if not end.ranks.deaths:
            status = "stopped" if asked else "finished"
            return replace(stopped(status, ExitCode.OK), status=status), False
        death = end.ranks.deaths[0]
        code = death.exit_code if death.exit_code > 0 else 128 - death.exit_code
        if asked:
            return stopped(f"rank {death.rank} left with {code} after {asked.name}", code), False
        return from_finding(describe_death(death, self._run), code), True

    def go_on(self, end: AttemptEnd, judged: Judgement) -> Again | Outcome:
        outcome = judged.outcome
        if not judged.can_restart or end.asked:
            return outcome
        is_long = time.monotonic() - self._began_s > _LONG_S
        self._barren = 0 if self._read.has_progress or is_long else self._barren + 1
        refusal = self._why_no_restart(end.ranks.deaths[0])
        if refusal is not None:
            return replace(outcome, findings=[*outcome.findings, *refusal])
        self._restarts += 1
        return Again([*outcome.findings, self._restarted(outcome)])

    def _hear_line(self, rank: int, text: str, is_update: bool) -> None:
        self._on_line(rank, text, is_update)
        if self._is_start_told:
            self._read.take(rank, text)
        else:
            self._early.append((rank, text))

    def _tell_start(self, starts: list[RankStart]) -> None:
        for rank, start in enumerate(starts):
            self._events.write(
                RankStarted(
                    rank=rank,
                    world=self._prepared.world,
                    pid=start.pid,
                    device=start.device,
                    backend=self._prepared.backend,
                    step=None,
                    resumed_from=None,
                    source="launch",
                )
            )

    def _judge_world(self, ranks: Ranks) -> None:
        """Say where ranks have not found each other. A bar alone may count files before they
        join."""
        has_loss = self._read.has_loss
        is_late = not self._is_looked_at and time.monotonic() - self._began_s > _QUIET_S
        if self._is_judged or not (has_loss or is_late):
            return
        self._is_judged, self._is_looked_at = has_loss, True
        found = judge_ranks(ranks.pids, is_cpu=self._prepared.is_cpu, has_loss=has_loss)
        for finding in found:
            if finding.slug not in self._known:
                self._events.write(FindingMade(finding=finding))
        self._known |= {finding.slug for finding in found}

    def _why_no_restart(self, death: RankDeath) -> list[Finding] | None:
        """Findings when another attempt makes no sense (none, where that needs no words); None when
        it does."""
        limit, barren = self._prepared.request.max_restarts, self._barren
        if limit == 0 or (death.exit_code == _USAGE and barren):
            return []
        if barren >= 2:
            return [
                Finding(
                    slug="crash-loop",
                    what=f"{barren} attempts in a row ended before the first step: not started "
                    "again",
                    why="no step, loss or epoch was read from the output in either of them",
                    fix="mend what the Finding above names; the script's log has all of it",
                )
            ]
        if self._restarts >= limit:
            return [
                Finding(
                    slug="restarts-spent",
                    what=f"{self._restarts} restarts were made, {limit} are allowed",
                    why=f"--max-restarts {limit}; every attempt lost a rank",
                    fix=f"--max-restarts {2 * limit}",
                )
            ]
        return None

    def _restarted(self, outcome: Outcome) -> Finding:
        words, limit = self._prepared.resume_words, self._prepared.request.max_restarts
        how = f"with `{' '.join(words)}`" if words else "from the beginning: no --resume-with"
        return Finding(
            slug="restarted",
            what=f"{outcome.reason}; the ranks start again {how}",
            why=f"restart {self._restarts} of --max-restarts {limit}",
            fix="nothing to do; --max-restarts 0 turns it off",
            severity="warning",
        )
