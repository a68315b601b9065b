"""Several nodes as the place of a run's ranks. When a node is lost, the run waits for it, then
continues with those that are left, if the job allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phalanx.errors import UserError
from phalanx.job.schema import Devices
from phalanx.machine import Machine
from phalanx.places.nodes.findings import waiting_for_node
from phalanx.places.nodes.leader import Nodes
from phalanx.places.nodes.rank_group import NodesGroup
from phalanx.planner.schema.plan import Plan
from phalanx.prepare.launcher import Launcher
from phalanx.prepare.rank_environment import rank_environment
from phalanx.run.directory import RunDirectory
from phalanx.run.events import EventWriter
from phalanx.supervise.recovery import Revision, revision_between


class NodesPlace:
    """Ranks on all nodes that have met; this is node 0."""

    is_local = False

    def __init__(
        self,
        nodes: Nodes,
        launcher: Launcher,
        devices: Devices,
        replan: Callable[[Machine, Plan], Plan],
    ) -> None:
        """`replan` makes the plan of a run that continues on another machine."""
        self._nodes = nodes
        self._launcher = launcher
        self._wait_s = devices.node_wait_s
        self._least = devices.min_nodes
        self._replan = replan

    @property
    def hosts(self) -> list[str]:
        return self._nodes.hosts

    def facts(self) -> dict[str, Any]:
        return self._nodes.facts()

    def make_ranks(self, run: RunDirectory, plan: Plan, attempt: int) -> NodesGroup:
        return self._nodes.start_ranks(
            self._launcher,
            run.path,
            plan,
            attempt=attempt,
            env=rank_environment(run, plan, self._nodes.settings),
            wait_s=self._wait_s,
        )

    def recover(
        self, plan: Plan, events: EventWriter, is_stopped: Callable[[], bool]
    ) -> tuple[bool, Revision | None]:
        """Wait for the nodes that were lost; plan for those that are left. All ranks have ended."""
        nodes = self._nodes
        for rank in nodes.lost if self._wait_s else ():
            link = nodes.links[rank]
            finding = waiting_for_node(link.name, str(link.lost), self._wait_s, self._least)
            events.write("finding", finding=finding.to_json())
        if nodes.wait_for_lost(self._wait_s, is_stopped):
            return True, None
        left = nodes.count - len(nodes.lost)
        if is_stopped() or left < (self._least or nodes.count):
            return False, None
        lost = ", ".join(nodes.links[rank].name for rank in nodes.lost)
        try:
            fewer = self._replan(nodes.leave_lost(), plan)
        except UserError as error:  # nothing that fits on those
            for finding in error.findings:
                events.write("finding", finding=finding.to_json())
            return False, None
        words = f"{left} node{'s go' if left > 1 else ' goes'} on"
        reason = f"{lost} is lost; {words}, devices.min_nodes = {self._least}"
        return True, revision_between(plan, fewer, reason, None)
