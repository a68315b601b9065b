"""The nodes of a run as node 0 sees them: it plans for all of them, has them start their ranks, and
tells them how it ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from phalanx.errors import ExitCode, Finding, UserError, errors_of
from phalanx.machine import Machine
from phalanx.machine.combined import combine_machines
from phalanx.machine.network import rdma_devices
from phalanx.places.nodes import findings as say
from phalanx.places.nodes.meeting_terms import Met
from phalanx.places.nodes.messages import MachineFound, RunEnded, StartShare
from phalanx.places.nodes.preflight import wait_for
from phalanx.places.nodes.rank_group import NodesGroup
from phalanx.planner.schema.plan import Plan
from phalanx.run.event_kinds import NodesJoined
from phalanx.run.launching import Share
from phalanx.supervise.place import LocalRanks, Order

_FAST_GBPS = 10.0
_LOOK_S = 0.2


class Nodes:
    """All nodes of a run, on node 0. Whatever ends it, the others are told."""

    def __init__(self, met: Met) -> None:
        self.members = met.members
        self.links = met.links
        self.settings = met.settings
        """What ranks on this node are told about the network."""
        self.findings: list[Finding] = []
        """Where the nodes differ, when they may."""
        self.ranks = [member.node_rank or 0 for member in met.members]
        """Numbers of the nodes that take part, as they met."""
        self._find_again = met.find_again
        self._close = met.close
        self._machines: dict[int, Machine] = {}
        self._is_cpu = False
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
        return len(self.ranks)

    @property
    def hosts(self) -> list[str]:
        return [member.host for member in self.members]

    @property
    def lost(self) -> list[int]:
        """Numbers of the nodes that are gone."""
        return [rank for rank, link in self.links.items() if link.lost is not None]

    def wait_for_lost(self, timeout_s: float, is_stopped: Callable[[], bool]) -> bool:
        """Whether all nodes that were lost are there again within this time."""
        deadline = time.monotonic() + timeout_s
        while self.lost and time.monotonic() < deadline and not is_stopped():
            for rank in self.lost:
                link = self._find_again(rank)
                if link is not None:
                    self.links[rank] = link
            time.sleep(_LOOK_S)
        return not self.lost

    def leave_lost(self) -> Machine:
        """Go on without the nodes that are gone: the machine that those left are together."""
        for rank in self.lost:
            self.links.pop(rank).close()
            self.ranks.remove(rank)
        return self._combine(on_cpu=self._is_cpu)

    @property
    def address(self) -> str:
        """Where ranks of all nodes meet."""
        return self.members[0].address

    def spread(self, local: LocalRanks, share: Share, order: Order) -> NodesGroup:
        return NodesGroup(local, self.links, StartShare(share, order))

    def facts(self) -> NodesJoined:
        return NodesJoined(
            members=[member.described for member in self.members],
            settings=[member.settings for member in self.members],
        )

    def gather(self, mine: Machine, *, on_cpu: bool) -> Machine:
        """The machine that all nodes are together; asked of each of them once."""
        for rank, link in self.links.items():
            if rank not in self._machines:
                self._machines[rank] = wait_for(link, MachineFound, None).machine
        self._machines[0], self._is_cpu = mine, on_cpu
        return self._combine(on_cpu=on_cpu)

    def _combine(self, *, on_cpu: bool) -> Machine:
        machines = [self._machines[rank] for rank in self.ranks]
        names = [self.members[rank].described for rank in self.ranks]
        links = [self.members[rank].gbps for rank in self.ranks]
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
        ranks = plan.devices.ranks
        if ranks.value % self.count or plan.devices.nodes.value != self.count:
            raise UserError(say.uneven(ranks.value, self.count, ranks.reason))

    def tell_end(self, status: str, exit_code: int, reason: str, findings: list[Finding]) -> None:
        """Tell the others how it ended, once."""
        if self._is_told:
            return
        self._is_told = True
        for link in self.links.values():
            link.send(RunEnded(status, exit_code, reason, findings))
