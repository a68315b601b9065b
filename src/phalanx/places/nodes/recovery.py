"""When a node is lost, the run waits for it, then continues with those that are left, if the job
allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from phalanx.errors import Finding, UserError
from phalanx.job.schema import Devices
from phalanx.machine import Machine
from phalanx.places.nodes.findings import waiting_for_node
from phalanx.places.nodes.leader import Nodes
from phalanx.planner.schema.plan import Plan
from phalanx.supervise.recovery import Revision, revision_between


class NodeRecovery:
    """Gets a training run over the loss of nodes."""

    def __init__(
        self, nodes: Nodes, devices: Devices, replan: Callable[[Machine, Plan], Plan]
    ) -> None:
        """`replan` makes the plan of a run that continues on another machine."""
        self.wait_s = devices.node_wait_s
        self._nodes = nodes
        self._least = devices.min_nodes
        self._replan = replan

    def recover(
        self, plan: Plan, tell: Callable[[Finding], object], is_stopped: Callable[[], bool]
    ) -> tuple[bool, Revision | None]:
        """Wait for the nodes that were lost; plan for those that are left. All ranks have ended."""
        nodes = self._nodes
        for finding in self._waiting():
            tell(finding)
        if nodes.wait_for_lost(self.wait_s, is_stopped):
            return True, None
        left = nodes.count - len(nodes.lost)
        if is_stopped() or left < (self._least or nodes.count):
            return False, None
        lost = ", ".join(nodes.links[rank].name for rank in nodes.lost)
        try:
            fewer = self._replan(nodes.leave_lost(), plan)
        except UserError as error:  # nothing that fits on those
            for finding in error.findings:
                tell(finding)
            return False, None
        words = f"{left} node{'s go' if left > 1 else ' goes'} on"
        reason = f"{lost} is lost; {words}, devices.min_nodes = {self._least}"
        return True, revision_between(plan, fewer, reason, None)

    def _waiting(self) -> Iterator[Finding]:
        for rank in self._nodes.lost if self.wait_s else ():
            link = self._nodes.links[rank]
            yield waiting_for_node(link.name, str(link.lost), self.wait_s, self._least)
