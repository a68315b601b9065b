"""Where the ranks of a plan are."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.machine import Gpu
from phalanx.planner.schema.plan import Decision


@dataclass(frozen=True)
class Placement:
    """Where the ranks are."""

    device: Decision[str]
    gpus: Decision[list[int]]
    ranks: Decision[int]
    cards: tuple[Gpu, ...]
    """The GPUs behind `gpus`, in rank order; those of one node where there are several."""
    nodes: int = 1

    @property
    def node_ranks(self) -> int:
        """Ranks that share the cores of one node."""
        return self.ranks.value // self.nodes
