"""What a run does after a node was lost: it waits for it, then goes on with those that are left, if
the job allows."""

from __future__ import annotations

from collections.abc import Callable

from phalanx.errors import UserError
from phalanx.job.schema import Devices
from phalanx.machine import Machine
from phalanx.places.nodes.findings import waiting_for_node
from phalanx.places.nodes.leader import Nodes
from phalanx.planner.schema.plan import Plan
from phalanx.run.events import EventWriter
from phalanx.supervise.recovery import Revision, revision_between


class LossOfNodes:
    """One loss: all ranks are ended by now."""

    def __init__(
        self, nodes: Nodes, devices: Devices, replan: Callable[[Machine, Plan], Plan] | None
    ) -> None:
        """`replan` makes the plan of a run that goes on with another machine."""
        self._nodes = nodes
        self._wait_s = devices.node_wait_s
        self._least = devices.min_nodes
        self._replan = replan

    def get_over(
        self, plan: Plan, events: EventWriter, is_stopped: Callable[[], bool]
    ) -> tuple[bool, Revision | None]:
        """Whether the ranks can start again, and the plan for fewer nodes where it is that."""
        nodes = self._nodes
        for rank in nodes.lost if self._wait_s else ():
            link = nodes.links[rank]
            finding = waiting_for_node(link.name, str(link.lost), self._wait_s, self._least)
            events.write("finding", finding=finding.to_json())
        if nodes.wait_for_lost(self._wait_s, is_stopped):
            return True, None
        left = nodes.count - len(nodes.lost)
        if is_stopped() or self._replan is None or left < (self._least or nodes.count):
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
