"""Beside a rank's own weights and gradients: what is gathered, and what autocast copies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from phalanx.job.schema import Job
from phalanx.job.strategies import facts_of
from phalanx.planner.memory.deepspeed import BUCKET
from phalanx.planner.schema.trace import Trace, Weight


class Copies(NamedTuple):
    """Copies of weights in 16 bits that autocast made in the trace and makes nowhere here; negative
    where the trace had none."""

    kept: int = 0
    checkpointed: int = 0


def copies_less(job: Job, trace: Trace, weights: list[Weight], strategy: str) -> Copies:
    """Of a run in bf16 or fp16."""
    narrow = [w for w in weights if w.held]
    frozen = sum(w.elements * w.itemsize for w in narrow) // 2
    if facts_of(strategy).is_sharded:  # weights are in 16 bits already
        return Copies(*2 * (trace.parameter_bytes // 2 - frozen,))
    if job.frozen_precision != "full":
        return Copies()
    # The trace held them in 16 bits. A copy stays for backward; of blocks that run again, one's.
    by_block = _by_block(narrow)
    outside = by_block.pop(None, 0)
    return Copies(-frozen, -(outside + max(by_block.values(), default=0)) // 2)


class Gathered(NamedTuple):
    """Bytes that a rank has of other ranks' shards, besides its own."""

    weights: int = 0
    block_gradients: int = 0
    outside_gradients: int = 0


def gathered_by(job: Job, trace: Trace, is_half: bool, strategy: str) -> Gathered:
    """FSDP2 in torch 2.13, with B bytes in the largest block and R outside of the blocks:

    forward, in a block:    R + B gathered + B of the buffer it was gathered in, which stays until
                            the next block is gathered (comm_ctx.all_gather_state)
    the loss:               R + B: the buffer of the last block
    backward, in a block:   R + B gathered + B of the buffer of the next one, fetched ahead;
                            its gradients, B; the input of the last reduction, B in fp32
    its end:                gradients of R, and the input of their reduction, R in fp32; no weights

    Weights and their gradients are in 16 bits under bf16 and fp16. So R + 2 B of weights are there
    all the time (an upper bound at the loss: B too many), and up to 2 B of gradients later.
    tests/ranks/test_bytes.py counts these storages.

    DeepSpeed reduces gradients in a bucket, which it allocates at once."""
    block, outside = trace.largest_block_bytes, trace.outside_bytes
    narrow = 2 if is_half else 1
    facts = facts_of(strategy)
    if not facts.is_sharded:
        return Gathered()
    if facts.has_zero_stages:
        bucket = min(trace.parameter_bytes, 4 * BUCKET) // narrow
        weights = (outside + 2 * block) // narrow if job.deepspeed.stage == 3 else 0
        return Gathered(weights + bucket)
    weights = outside + 2 * block
    if not job.fsdp.reshard_after_forward:
        weights = trace.parameter_bytes + block
    own, own_outside = _learning_bytes(trace)
    return Gathered(weights // narrow, own // narrow + own, own_outside // narrow + own_outside)


def _learning_bytes(trace: Trace) -> tuple[int, int]:
    """What learns of the block that has most of it, and outside of the blocks."""
    is_known = any(weight.block is not None for weight in trace.weights)
    if not is_known and trace.largest_block_bytes:
        return trace.largest_block_bytes, trace.outside_bytes
    by_block = _by_block(w for w in trace.weights if w.learns)
    outside = by_block.pop(None, 0)
    return max(by_block.values(), default=0), outside


def _by_block(weights: Iterable[Weight]) -> dict[int | None, int]:
    sizes: dict[int | None, int] = {}
    for weight in weights:
        size = weight.elements * weight.itemsize
        sizes[weight.block] = sizes.get(weight.block, 0) + size
    return sizes
