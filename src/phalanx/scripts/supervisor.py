"""Owns the run of a launched script from start to end: starts its ranks, reads what they print,
starts them again when one dies, passes signals and the exit code on.

The same way as supervisor.py, with ranks that know nothing of Phalanx: no plan, no events of their
own, and their output is all they say.
"""

from __future__ import annotations

import os
import platform
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from phalanx.errors import ExitCode, Finding
from phalanx.run.attempt import claim_attempt
from phalanx.run.directory import RunDirectory
from phalanx.run.events import Event, EventWriter
from phalanx.run.sinks.process import SinkSettings
from phalanx.scripts.death import describe_death
from phalanx.scripts.environment import Place, hold_port, torchrun_variables
from phalanx.scripts.events import ScriptEvents
from phalanx.scripts.ranks import ScriptRanks, TakeLine
from phalanx.scripts.request import PreparedScript
from phalanx.scripts.world import judge_ranks
from phalanx.supervise.post_mortem import PostMortem
from phalanx.supervise.rank_group import RankDeath
from phalanx.supervise.signals import hearing_stops
from phalanx.supervise.sinks import SinkProcess
from phalanx.supervise.usage import UsageSampler

_POLL_S = 0.05
_LONG_S = 600.0  # ranks that lived so long had begun, also when their output says nothing
_QUIET_S = 60.0  # without a loss in the output: a script that prints none has its GPUs by then
_USAGE = 2  # argparse's exit code: the same words fail again


class Ranks(Protocol):
    """The ranks of one attempt, on one node or on several."""

    devices: list[str]
    """Where each rank computes; empty where that is as prepared."""
    asked: list[signal.Signals]
    lost: Finding | None

    @property
    def pids(self) -> list[int]: ...

    @property
    def deaths(self) -> list[RankDeath]: ...

    def start(self) -> list[int]: ...

    def follow(self, take: TakeLine, timeout_s: float) -> bool: ...

    def pass_on(self, number: signal.Signals) -> None: ...

    def last_lines(self, rank: int) -> list[str]: ...

    def close(self) -> None: ...


class OtherNodes(Protocol):
    """The nodes that have met this one, which leads them (places/nodes)."""

    @property
    def address(self) -> str: ...

    @property
    def hosts(self) -> list[str]: ...

    def facts(self) -> dict[str, Any]: ...

    def script_ranks(
        self, local: ScriptRanks, run: RunDirectory, place: Place, devices: list[str]
    ) -> Ranks: ...


@dataclass(frozen=True)
class ScriptOutcome:
    """How a launched script ended."""

    status: str
    """finished, stopped or failed."""
    exit_code: int
    """The first failing rank's; 128 + the signal when it was killed."""
    reason: str
    step: int | None
    restarts: int
    findings: list[Finding] = field(default_factory=list)


class ScriptSupervisor:
    """Runs one launched script to its end."""

    def __init__(
        self,
        run: RunDirectory,
        prepared: PreparedScript,
        *,
        on_line: TakeLine,
        on_event: Callable[[Event], None],
        nodes: OtherNodes | None = None,
    ) -> None:
        self._run = run
        self._prepared = prepared
        self._nodes = nodes
        self._post_mortem = PostMortem(run)
        self._on_line = on_line
        self._on_event = on_event
        self._asked: list[signal.Signals] = []

    def run(self) -> ScriptOutcome:
        """Start the ranks, and start them again when one has died, until the script ends."""
        events = EventWriter(self._run.events, "supervisor")
        self._begin(events, 0)
        sinks = SinkProcess(self._run, SinkSettings(tensorboard=self._prepared.request.tensorboard))
        try:
            # SIGUSR1 is a scheduler's way to ask: the ranks get SIGTERM, and the exit code says
            # that the script is to go on.
            with hearing_stops(self._asked, signal.SIGUSR1):
                if self._nodes is not None:
                    self._tell(events, "nodes", **self._nodes.facts())
                return self._attempts(events)
        finally:
            self._write_findings(events, sinks.close())
            events.close()

    def _begin(self, events: EventWriter, attempt: int) -> None:
        hosts = self._nodes.hosts if self._nodes is not None else [platform.node()]
        events.begin(claim_attempt(self._run.path, attempt, hosts))

    def _attempts(self, events: EventWriter) -> ScriptOutcome:
        restarts, barren, step = 0, 0, None
        while True:
            if restarts:
                self._begin(events, restarts)
            began_s = time.monotonic()
            ranks, read = self._attempt(restarts, events)
            step = read.step if read.step is not None else step
            outcome = self._explain(self._judge(ranks, step, restarts), ranks, events)
            if not ranks.deaths or self._asked or ranks.lost is not None:
                return self._end(events, outcome)
            barren = 0 if read.has_progress or time.monotonic() - began_s > _LONG_S else barren + 1
            refusal = self._why_no_restart(ranks.deaths[0], barren, restarts)
            if refusal is not None:
                outcome.findings.extend(refusal)
                return self._end(events, outcome)
            restarts += 1
            self._write_findings(events, [*outcome.findings, self._restarted(outcome, restarts)])

    def _attempt(self, attempt: int, events: EventWriter) -> tuple[Ranks, ScriptEvents]:
        prepared = self._prepared
        self._tell(events, "attempt", ranks=prepared.world)
        read = ScriptEvents(events, prepared.request.results, self._run.path)
        address = self._nodes.address if self._nodes is not None else "127.0.0.1"
        with hold_port(address) as port:
            place = Place(
                ranks=prepared.ranks,
                run_id=self._run.name,
                restarts=attempt,
                max_restarts=prepared.request.max_restarts,
                port=port.getsockname()[1],
                address=address,
                nodes=prepared.request.nodes,
            )
            ranks = self._make_ranks(place, attempt)
            try:
                self._start(ranks, events)
                self._follow(ranks, read, events)
            finally:
                ranks.close()
        return ranks, read

    def _make_ranks(self, place: Place, attempt: int) -> Ranks:
        prepared = self._prepared
        environments = rank_environments(prepared, place, self._run)
        ranks = ScriptRanks(self._run, prepared.argv_of(attempt), environments, attempt)
        if self._nodes is None:
            return ranks
        return self._nodes.script_ranks(ranks, self._run, place, prepared.devices)

    def _start(self, ranks: Ranks, events: EventWriter) -> None:
        pids = ranks.start()
        devices = ranks.devices or self._prepared.devices
        for rank, pid in enumerate(pids):
            self._tell(
                events,
                "start",
                rank=rank,
                world=self._prepared.world,
                pid=pid,
                device=devices[rank],
                backend=self._prepared.backend,
                step=None,
                resumed_from=None,
                source="launch",
            )

    def _follow(self, ranks: Ranks, read: ScriptEvents, events: EventWriter) -> None:
        """Pass output on until the ranks are gone."""
        forwarded = 0
        late_s = time.monotonic() + _QUIET_S
        known: set[str] = set()
        is_judged = is_looked_at = False

        def take(rank: int, text: str, is_update: bool) -> None:
            self._on_line(rank, text, is_update)
            self._pass_on(read.take(rank, text))

        usage = UsageSampler(ranks.pids, self._prepared.gpus)
        while ranks.follow(take, _POLL_S):
            self._pass_on(read.look())
            for sample in usage.look():
                self._tell(events, "usage", step=read.step, **sample)
            is_late = not is_looked_at and time.monotonic() > late_s
            # A bar alone may count files before they join.
            if not is_judged and (read.has_loss or is_late):
                is_judged, is_looked_at = read.has_loss, True
                is_cpu = self._prepared.is_cpu
                found = judge_ranks(ranks.pids, is_cpu=is_cpu, has_loss=read.has_loss)
                self._write_findings(events, [f for f in found if f.slug not in known])
                known |= {finding.slug for finding in found}
            self._asked += ranks.asked[len(self._asked) :]
            if len(self._asked) > forwarded:
                number = self._asked[0] if len(self._asked) == 1 else signal.SIGKILL
                number = signal.SIGTERM if number == signal.SIGUSR1 else number
                forwarded = len(self._asked)
                ranks.pass_on(number)
                once_more = "; once more (Ctrl-C) ends them at once"
                said = f"{number.name} is passed on to the ranks" + (
                    once_more if forwarded == 1 else ""
                )
                self._tell(events, "stop", reason=said)
        usage.close()
        self._pass_on(read.end())

    def _judge(self, ranks: Ranks, step: int | None, restarts: int) -> ScriptOutcome:
        if len(self._asked) > 1:
            reason = "interrupted by a second signal"
            return ScriptOutcome("stopped", int(ExitCode.INTERRUPTED), reason, step, restarts)
        if self._asked and self._asked[0] == signal.SIGUSR1:
            reason = "stopped by SIGUSR1: the ranks were told with SIGTERM"
            return ScriptOutcome("stopped", int(ExitCode.STOPPED), reason, step, restarts)
        if ranks.lost is not None:
            code, what = int(ExitCode.FAILED), ranks.lost.what
            return ScriptOutcome("failed", code, what, step, restarts, [ranks.lost])
        if not ranks.deaths:
            status = "stopped" if self._asked else "finished"
            return ScriptOutcome(status, 0, status, step, restarts)
        death = ranks.deaths[0]
        code = death.exit_code if death.exit_code > 0 else 128 - death.exit_code
        if self._asked:
            reason = f"rank {death.rank} left with {code} after {self._asked[0].name}"
            return ScriptOutcome("stopped", code, reason, step, restarts)
        finding = describe_death(death, ranks.last_lines(death.rank), self._run)
        return ScriptOutcome("failed", code, finding.what, step, restarts, [finding])

    def _explain(self, outcome: ScriptOutcome, ranks: Ranks, events: EventWriter) -> ScriptOutcome:
        def write(kind: str, **data: object) -> None:
            self._tell(events, kind, **data)

        found = self._post_mortem.examine(ranks.deaths, events.attempt, outcome.findings, write)
        if found == outcome.findings:
            return outcome
        return replace(outcome, reason=found[0].what, findings=found)

    def _why_no_restart(self, death: RankDeath, barren: int, restarts: int) -> list[Finding] | None:
        """Findings when another attempt makes no sense (none, where that needs no words); None when
        it does."""
        limit = self._prepared.request.max_restarts
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
        if restarts >= limit:
            return [
                Finding(
                    slug="restarts-spent",
                    what=f"{restarts} restarts were made, {limit} are allowed",
                    why=f"--max-restarts {limit}; every attempt lost a rank",
                    fix=f"--max-restarts {2 * limit}",
                )
            ]
        return None

    def _restarted(self, outcome: ScriptOutcome, count: int) -> Finding:
        words = self._prepared.resume_words
        how = f"with `{' '.join(words)}`" if words else "from the beginning: no --resume-with"
        return Finding(
            slug="restarted",
            what=f"{outcome.reason}; the ranks start again {how}",
            why=f"restart {count} of --max-restarts {self._prepared.request.max_restarts}",
            fix="nothing to do; --max-restarts 0 turns it off",
            severity="warning",
        )

    def _end(self, events: EventWriter, outcome: ScriptOutcome) -> ScriptOutcome:
        self._tell(
            events,
            "outcome",
            status=outcome.status,
            step=outcome.step,
            reason=outcome.reason,
            findings=[finding.to_json() for finding in outcome.findings],
            exit_code=outcome.exit_code,
        )
        return outcome

    def _write_findings(self, events: EventWriter, findings: list[Finding]) -> None:
        for finding in findings:
            self._tell(events, "finding", finding=finding.to_json())

    def _tell(self, events: EventWriter, kind: str, **data: object) -> None:
        self._pass_on([events.write(kind, **data)])

    def _pass_on(self, events: list[Event]) -> None:
        for event in events:
            self._on_event(event)


def rank_environments(
    prepared: PreparedScript, place: Place, run: RunDirectory
) -> list[dict[str, str]]:
    """The environment of each rank of a script on this node."""
    found = []
    for rank in range(place.ranks):
        log = run.nccl_log(place.node * place.ranks + rank)
        debug = {"NCCL_DEBUG_FILE": str(log)} if prepared.request.debug_comm else {}
        variables = torchrun_variables(place, rank)
        found.append({**debug, **os.environ, **prepared.variables, **variables})
    return found
