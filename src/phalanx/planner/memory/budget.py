"""How much of a device's memory a plan may use, and what the process holds besides."""

from __future__ import annotations

from phalanx.errors import format_bytes

# All measured on an H200 with torch 2.11 (benchmarks/planner): CUDA's context with its kernels, and
# the share of what torch's allocator holds beyond the tensors (median 11 %, 2 to 50).
CONTEXT_BYTES = 760 * 2**20
_FRAGMENTED = 1.1
# From 0.55 to 2.00 GiB after the first collective (Stas Bekman, ml-engineering,
# training/performance: two GPUs; more GPUs take more).
NCCL_BYTES = 1480 * 2**20
TENSORS_SPREAD, PROCESS_SPREAD = 0.05, 0.15
"""Relative half-widths that nine of ten points of benchmarks/planner lie within."""
_LEFT = 0.03  # of the device: the driver's own


def room_for(device_bytes: int, ranks: int = 1) -> int:
    """Bytes of tensors that fit for sure: with them even the upper end of what the process is
    predicted to hold is there."""
    besides = CONTEXT_BYTES + (NCCL_BYTES if ranks > 1 else 0)
    held = (1 - _LEFT) * device_bytes / (1 + PROCESS_SPREAD)
    return max(0, int((held - besides) / _FRAGMENTED))


def describe_room(device_bytes: int, ranks: int = 1) -> str:
    share = round(100 * room_for(device_bytes, ranks) / device_bytes)
    return f"{share} % of {format_bytes(device_bytes)}"


def process_bytes(tensors: int, ranks: int, context_bytes: int | None = None) -> tuple[int, str]:
    """All that a process holds of its GPU when tensors take so much, and the sum as text."""
    context = context_bytes or CONTEXT_BYTES
    nccl = NCCL_BYTES if ranks > 1 else 0
    total = int(_FRAGMENTED * tensors) + context + nccl
    parts = [
        f"tensors {format_bytes(tensors)}",
        f"{round(100 * (_FRAGMENTED - 1))} % that the allocator holds besides",
        f"context {format_bytes(context)}",
        *([f"NCCL {format_bytes(nccl)}"] if nccl else []),
    ]
    return total, f"{' + '.join(parts)}; {describe_interval(total, PROCESS_SPREAD)}"


def describe_interval(size: int, spread: float) -> str:
    low, high = int(size / (1 + spread)), int(size * (1 + spread))
    return f"{format_bytes(low)} to {format_bytes(high)}"
