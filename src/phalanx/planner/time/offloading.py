"""What state in host memory costs: copies over PCIe, and the optimizer's step on the CPU."""

from __future__ import annotations

from phalanx.machine import Gpu
from phalanx.planner.schema.plan import Plan
from phalanx.planner.time.communication import pcie

# Of a rank with a few cores: memory of a server's socket, 100 to 200 GB/s, shared by its ranks and
# far from reached by an optimizer's step. Not measured here.
_UPDATE_GB_PER_S = 10.0
SPREAD = 1.0
"""Relative half-width of such a step."""


def time_offload(
    plan: Plan,
    cards: tuple[Gpu, ...],
    *,
    weight_bytes: int,
    gradient_bytes: int,
    state_copies: int,
    slots: int,
) -> float:
    """Seconds of a step that nothing hides. FSDP fetches its share of the weights before forward
    and before backward of each micro-batch and sends gradients back; ZeRO sends gradients of a
    step, and fetches weights once, or for each use where they are kept in host memory too."""
    kept = plan.parallel.offload.value
    if kept is None:
        return 0.0
    shards = plan.parallel.shard_ranks.value
    weights, gradients = weight_bytes / shards, gradient_bytes / shards
    is_fetched_twice = kept == "state" or "weights" in kept
    copied = (2 * slots * weights if is_fetched_twice else weights) + gradients * (
        slots if kept == "state" else 1
    )
    seconds = copied / (pcie(cards)[0] * 1e9)
    if kept == "state" or "optimizer" in kept:
        passes = 3 + 2 * state_copies  # weight and gradient read, weight written, state both
        seconds += passes * gradients / (_UPDATE_GB_PER_S * 1e9)
    return seconds
