"""The nodes of a run as node 0 sees them: it plans for all of them, has them start their ranks, and
tells them how it ended. And the ranks of one attempt over all nodes, as the supervisor sees
them."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals
from types import TracebackType
from typing import Any

from phalanx.errors import ExitCode, Finding, UserError, errors_of
from phalanx.launch import node_findings as say
from phalanx.launch.agent import RankDeath, RankGroup, cause_first
from phalanx.launch.culprit import Witness
from phalanx.launch.launcher import Launcher
from phalanx.launch.meeting_terms import Met
from phalanx.launch.node_link import NodeLink
from phalanx.launch.preflight import wait_for
from phalanx.machine import Machine
from phalanx.machine.combined import combine_machines
from phalanx.machine.network import rdma_devices
from phalanx.planner.plan import Plan
from phalanx.run.heartbeat import Beat

_FAST_GBPS = 10.0
_END_PEERS_S = 5.0  # SIGTERM to SIGKILL when a rank has died on another node


class NodeLostError(Exception):
    """A node of the run is gone."""

    def __init__(self, finding: Finding) -> None:
        self.finding = finding
        super().__init__(finding.what)


class Nodes:
    """All nodes of a run, on node 0. Whatever ends it, the others are told."""

    def __init__(self, met: Met) -> None:
        self.members = met.members
        self.links = met.links
        self.settings = met.settings
        """What ranks on this node are told about the network."""
        self.findings: list[Finding] = []
        """Where the nodes differ, when they may."""
        self._close = met.close
        self._machines: dict[int, Machine] = {}
        self._is_told = False

    def __enter__(self) -> Nodes:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, UserError):
            self.tell_end("failed", int(error.exit_code), "", error.findings)
        elif error is not None:
            self.tell_end("failed", int(ExitCode.INTERRUPTED), type(error).__name__, [])
        self._close()

    @property
    def count(self) -> int:
        return len(self.members)

    def facts(self) -> dict[str, Any]:
        """The fields of the `nodes` event."""
        return {
            "members": [member.described for member in self.members],
            "settings": [member.settings for member in self.members],
        }

    def gather(self, mine: Machine, *, on_cpu: bool) -> Machine:
        """The machine that all nodes are together; asked of each of them once."""
        for rank, link in self.links.items():
            if rank not in self._machines:
                record = wait_for(link, "machine", None)
                self._machines[rank] = Machine.from_json(record["machine"])
        machines = [mine, *(self._machines[rank] for rank in sorted(self._machines))]
        names = [member.described for member in self.members]
        links = [member.gbps for member in self.members]
        combined, findings = combine_machines(machines, names, links, on_cpu=on_cpu)
        if errors_of(findings):
            raise UserError(findings)
        self.findings = [*findings, *self._slow(combined, on_cpu=on_cpu)]
        return combined

    def _slow(self, machine: Machine, *, on_cpu: bool) -> list[Finding]:
        """GPUs that would wait for an ordinary cable."""
        if on_cpu or machine.accelerator != "cuda" or rdma_devices():
            return []
        return [
            say.slow_network(member.title, member.interface, member.gbps)
            for member in self.members
            if member.gbps is not None and member.gbps < _FAST_GBPS
        ]

    def check(self, plan: Plan) -> None:
        """Whether every node gets as many ranks as every other."""
        ranks = plan.ranks
        if ranks.value % self.count or plan.nodes.value != self.count:
            raise UserError(say.uneven(ranks.value, self.count, ranks.reason))

    def start_ranks(
        self, launcher: Launcher, run: Path, plan: Plan, *, attempt: int, env: dict[str, str]
    ) -> NodesGroup:
        """The ranks of an attempt, on all nodes; to be started."""
        local = RankGroup(
            launcher,
            run,
            ranks=plan.ranks.value // self.count,
            attempt=attempt,
            env=env,
            node={"node": 0, "nodes": self.count, "address": self.members[0].address, "port": 0},
        )
        order = {
            "run": str(run),
            "plan": plan.digest(),
            "ranks": plan.ranks.value // self.count,
            "attempt": attempt,
            "address": self.members[0].address,
        }
        return NodesGroup(local, self.links, order, launcher)

    def tell_end(self, status: str, exit_code: int, reason: str, findings: list[Finding]) -> None:
        """Tell the others how it ended, once."""
        if self._is_told:
            return
        self._is_told = True
        for link in self.links.values():
            link.send(
                {
                    "end": status,
                    "exit_code": exit_code,
                    "reason": reason,
                    "findings": [finding.to_json() for finding in findings],
                }
            )


class NodesGroup:
    """The ranks of one attempt on several nodes: those of this one, which holds the store that all
    of them meet at, and those that the other nodes start when it is there."""

    def __init__(
        self,
        local: RankGroup,
        links: dict[int, NodeLink],
        order: dict[str, Any],
        launcher: Launcher,
    ) -> None:
        self._local = local
        self._links = links
        self._order = order
        self._launcher = launcher
        self._is_ordered = False
        self._are_peers_told = False
        self._started: set[int] = set()
        self._over: set[int] = set()
        self._ending_since: float | None = None
        self._is_killing = False
        self._early: list[RankDeath] = []
        self._late: list[RankDeath] = []
        self._local_counted = False
        self.error: BaseException | None = None
        self.asked = 0
        """How often the node that was asked most often was asked to stop."""
        self._far_beats: dict[int, Beat] = {}
        self._far_witnesses: dict[int, list[Witness]] = {}

    @property
    def beats(self) -> dict[int, Beat]:
        """Where each rank is, as last heard."""
        return {**self._local.beats, **self._far_beats}

    @property
    def witnesses(self) -> list[Witness] | None:
        """What the ranks of all nodes say about where they are stuck; None while some are to be
        heard."""
        mine = self._local.witnesses
        if mine is None or len(self._far_witnesses) < len(self._links):
            return None
        return [*mine, *(w for far in self._far_witnesses.values() for w in far)]

    def ask_where(self) -> None:
        """Have every rank say where it is stuck; `witnesses` tells when all have."""
        self._local.ask_where()
        for link in self._links.values():
            link.send({"stacks": 1})

    @property
    def deaths(self) -> list[RankDeath]:
        """Those that ended by themselves first."""
        return [*sorted(self._early, key=cause_first), *sorted(self._late, key=cause_first)]

    def start(self) -> None:
        self._local.start()

    @property
    def is_running(self) -> bool:
        self.wait(0)
        return not (self._local.is_over and len(self._over) == len(self._links))

    def wait(self, timeout_s: float) -> None:
        """Wait for news of the ranks, at most this long."""
        if self._local.is_over:
            if timeout_s:
                time.sleep(timeout_s)
        else:
            self._local.wait(timeout_s)
        if self._local.store_port is not None and not self._is_ordered:
            self._is_ordered = True
            for link in self._links.values():
                link.send({"start": {**self._order, "port": self._local.store_port}})
        for rank, link in self._links.items():
            self._listen(rank, link)
        if self._local.is_over and not self._local_counted:
            self._local_counted = True
            self._count(self._local.deaths, self._local.error)
        self._end_peers()

    def signal(self, number: Signals) -> bool:
        """Send a signal to every rank. False when some are not there yet."""
        if number == SIGKILL:
            self._kill()
            return True
        is_there = self._local.is_started and len(self._started) == len(self._links)
        if not is_there or self._local.is_over:
            return False
        self._local.signal(number)
        for link in self._links.values():
            link.send({"signal": int(number)})
        return True

    def _listen(self, rank: int, link: NodeLink) -> None:
        while (record := link.receive(0)) is not None:
            if "started" in record:
                self._started.add(rank)
            elif "over" in record and record["over"] == self._order["attempt"]:
                self._over.add(rank)
                deaths = [RankDeath(*one) for one in record["deaths"]]
                error = record["error"]
                told = None if error is None else RuntimeError(f"{link.name}: {error}")
                self._count(deaths, told)
            elif "beats" in record:
                self._far_beats |= {b.rank: b for b in map(Beat.from_json, record["beats"])}
            elif "stacks" in record:
                self._far_witnesses[rank] = [Witness(**one) for one in record["stacks"]]
            elif "asked" in record:
                self.asked = max(self.asked, record["asked"])
        if link.is_over and rank not in self._over:
            self._over.add(rank)
            lost = NodeLostError(say.node_lost(link.name, str(link.lost)))
            self.error = self.error if isinstance(self.error, NodeLostError) else lost
            self._kill()

    def _count(self, deaths: list[RankDeath], error: BaseException | None) -> None:
        if self._is_killing:
            self._late.extend(replace(death, was_ended=True) for death in deaths)
        else:
            self._early.extend(deaths)
        if error is not None and self.error is None and not self._is_killing:
            self.error = error
        if (deaths or error is not None) and self._ending_since is None:
            self._ending_since = time.monotonic()
            self._signal_all(SIGTERM)

    def _end_peers(self) -> None:
        """A group that lacks a rank cannot go on; the store is let go when nobody needs it."""
        if len(self._over) == len(self._links) and not self._are_peers_told:
            self._are_peers_told = True
            self._local.tell_peers_over()
        since = self._ending_since
        if since is not None and time.monotonic() - since > _END_PEERS_S and not self._is_killing:
            self._kill()

    def _kill(self) -> None:
        self._is_killing = True
        self._ending_since = self._ending_since or time.monotonic()
        self._signal_all(SIGKILL)
        if not self._is_ordered:  # nobody was asked to start anything
            self._over |= set(self._links)

    def _signal_all(self, number: Signals) -> None:
        self._local.signal(number)
        for rank, link in self._links.items():
            if rank not in self._over:
                link.send({"signal": int(number)})
