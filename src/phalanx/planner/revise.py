"""Plan -> Plan | None after a rank ran out of memory: pure arithmetic, None when nothing is left.

The global batch, the samples of every step and the learning rate never change here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from typing import Any

from phalanx.planner.batch import BatchPlan, split_evenly
from phalanx.planner.batch_size import expected_speedup, micro_batches_per_rank
from phalanx.planner.plan import Decision, Plan

ALLOCATOR_VARIABLE = "PYTORCH_ALLOC_CONF"
"""torch's settings for its allocator, since 2.9; PYTORCH_CUDA_ALLOC_CONF is its older name."""
GROWING_SEGMENTS = "expandable_segments:True"

_BYTES_PER_ELEMENT = {"fp64": 8}  # weights stay in float32 under every other precision


def halve_micro_batch(plan: Plan) -> Plan | None:
    """The micro-batch halved, rounded up, until the largest one really shrinks."""
    old = plan.batch
    largest = largest_micro_batch(old)
    micro = old.micro_batch_size
    while micro > 1:
        micro = ceil(micro / 2)
        batch = replace(old, micro_batch_size=micro)
        if largest_micro_batch(batch) < largest:
            break
    else:
        return None
    ranks = plan.ranks.value
    reason = f"halved from {old.micro_batch_size}: a rank ran out of memory"
    return replace(
        plan,
        revision=plan.revision + 1,
        micro_batch_size=Decision(micro, reason),
        accumulation=micro_batches_per_rank(old.global_batch_size, micro, ranks),
        speedup=expected_speedup(batch, ranks),
        shrunk=_remember(plan, "micro_batch_size", old.micro_batch_size),
    )


def halve_evaluate_batch(plan: Plan) -> Plan | None:
    """The batch of the evaluation halved, rounded up, until the largest one really shrinks."""
    asked = old = plan.evaluate_batch_size.value
    samples = plan.num_test_samples.value
    largest = _largest(samples, old)
    while old > 1:
        old = ceil(old / 2)
        if _largest(samples, old) < largest:
            reason = f"halved from {asked}: a rank ran out of memory in evaluation"
            return replace(
                plan,
                revision=plan.revision + 1,
                evaluate_batch_size=Decision(old, reason),
                shrunk=_remember(plan, "evaluate_batch_size", asked),
            )
    return None


def grow_segments(plan: Plan, environment: Mapping[str, str]) -> Plan | None:
    """The same plan with an allocator that does not fragment; None when that is set already, or
    when the user has settings of their own for the allocator."""
    names = (ALLOCATOR_VARIABLE, "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
    if plan.device.value != "cuda" or any(n in plan.worker_env or n in environment for n in names):
        return None
    return replace(
        plan,
        revision=plan.revision + 1,
        worker_env={**plan.worker_env, ALLOCATOR_VARIABLE: GROWING_SEGMENTS},
    )


def changes_between(old: Plan, new: Plan) -> dict[str, dict[str, Any]]:
    """Each value that differs between two revisions, old and new."""
    before, after = old.decisions(), new.decisions()
    changed = {
        name: {"old": before[name].value, "new": after[name].value}
        for name in before
        if before[name].value != after[name].value
    }
    for name in sorted({*old.worker_env, *new.worker_env}):
        if old.worker_env.get(name) != new.worker_env.get(name):
            changed[name] = {"old": old.worker_env.get(name), "new": new.worker_env.get(name)}
    return changed


def largest_micro_batch(batch: BatchPlan) -> int:
    """Samples of the largest micro-batch of a run: the last step of an epoch may hold it."""
    steps = (0, batch.steps_per_epoch - 1)
    return max(slot.stop - slot.start for step in steps for slot in batch.slots_of(step))


def what_would_fit(plan: Plan) -> list[str]:
    """The cheapest things that would help a plan whose micro-batch cannot shrink any more."""
    choices = []
    if plan.device.value == "cuda" and plan.precision.value in ("fp32", "tf32"):
        choices.append("half the activations: `precision=bf16`, or fp16 on cards before Ampere")
    if plan.precision.value == "fp64" and not plan.is_recorded:  # `verify` needs it
        choices.append("half of everything: `precision=fp32`")
    choices.append("a smaller input or a smaller model, by the recipe's options")
    if plan.device.value == "cuda":
        choices.append("a GPU with more memory, or one that nobody else uses (`nvidia-smi`)")
    if plan.strategy.value in ("single", "ddp"):
        choices.append(
            "not more ranks: each holds the whole model; activation checkpointing and sharding "
            "are not there yet"
        )
    return choices


def state_bytes(plan: Plan) -> int:
    """Weights, their average, gradients and optimizer state of one rank, at most: when every
    parameter learns."""
    optimizer = plan.identity.get("optimizer", {})
    moments = 2 if optimizer.get("name") == "adamw" else int(bool(optimizer.get("momentum")))
    copies = 2 + moments + int(plan.ema.value is not None)
    return plan.parameters.value * _BYTES_PER_ELEMENT.get(plan.precision.value, 4) * copies


def _largest(samples: int, limit: int) -> int:
    return max((s.stop - s.start for s in split_evenly(0, samples, limit)), default=0)


def _remember(plan: Plan, name: str, asked: int) -> dict[str, int]:
    """What was asked for before the first cut stays what was asked for."""
    return {name: asked, **plan.shrunk}
