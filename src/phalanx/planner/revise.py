"""Plan -> Plan | None after a rank ran out of memory: pure arithmetic, None when nothing is left.

The global batch, the samples of every step and the learning rate never change here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from typing import Any

from phalanx.errors import format_bytes
from phalanx.job.strategies import facts_of
from phalanx.planner.batch.size import expected_speedup, micro_batches_per_rank
from phalanx.planner.memory.prediction import fits_for_sure, predict_parts, with_memory
from phalanx.planner.schema.micro_batches import BatchPlan, split_evenly
from phalanx.planner.schema.plan import Alternative, Decision, Plan

_FOLLOWING = ("step_s", "samples_per_s", "duration_s", "energy_kwh", "process_bytes")
"""What follows from the choices, and is no choice."""
ALLOCATOR_VARIABLE = "PYTORCH_ALLOC_CONF"
"""torch's settings for its allocator, since 2.9; PYTORCH_CUDA_ALLOC_CONF is its older name."""
GROWING_SEGMENTS = "expandable_segments:True"


def _untimed(plan: Plan, why: str) -> Plan:
    """Without what was predicted of its time: the operators are not known here any more."""
    gone: Decision[float | None] = Decision(None, f"not predicted again: {why}")
    return plan.replace(
        forecast=None, step_s=gone, samples_per_s=gone, duration_s=gone, energy_kwh=gone
    )


def halve_micro_batch(plan: Plan) -> Plan | None:
    """The micro-batch halved, rounded up, until the largest one really shrinks."""
    batch = _cut(plan)
    if batch is None:
        return None
    old, micro, ranks = (
        plan.batch.micro_batch_size.value,
        batch.micro_batch_size,
        plan.devices.ranks.value,
    )
    return with_memory(
        _untimed(plan, f"the micro-batch was cut from {old}").replace(
            revision=plan.revision + 1,
            micro_batch_size=Decision(micro, f"cut from {old}: a rank ran out of memory"),
            accumulation=micro_batches_per_rank(batch.global_batch_size, micro, ranks),
            speedup=expected_speedup(batch, ranks),
            shrunk=_remember(plan, "micro_batch_size", old),
            **_data_back(plan),
        )
    )


def _data_back(plan: Plan) -> dict[str, Any]:
    if plan.loading.data_on.value == "host":
        return {}
    return {
        "data_on": Decision("host", "taken from the device: a rank ran out of memory"),
        "device_data_bytes": 0,
    }


def _cut(plan: Plan) -> BatchPlan | None:
    old = plan.micro_batches
    halves = [old.micro_batch_size]
    while halves[-1] > 1:
        halves.append(ceil(halves[-1] / 2))
    # A half may leave one sample over where another size does not.
    others = range(2, old.micro_batch_size) if _keeps_two(plan) else ()
    cuts = [replace(old, micro_batch_size=micro) for micro in (*halves[1:], *others)]
    allowed = [
        batch
        for batch in cuts
        if batch.largest_slot < old.largest_slot
        and (_smallest(plan, batch) > 1 or not _keeps_two(plan))
    ]
    # One that fits for sure saves further attempts; where none does, what is there may do.
    sure = (batch for batch in allowed if _fits(plan, batch))
    return next(sure, allowed[0] if allowed else None)


def _fits(plan: Plan, batch: BatchPlan) -> bool:
    micro = Decision(batch.micro_batch_size, "tried")
    return fits_for_sure(with_memory(plan.replace(micro_batch_size=micro, **_data_back(plan))))


def _keeps_two(plan: Plan) -> bool:
    """Whether no micro-batch may be cut to one sample: BatchNorm cannot take statistics over it (it
    raises where a channel has one value). A job that has such micro-batches anyway may."""
    return plan.numerics.has_batchnorm and _smallest(plan, plan.micro_batches) > 1


def _smallest(plan: Plan, batch: BatchPlan) -> int:
    """The fewest samples that BatchNorm takes statistics over."""
    return batch.smallest_round(
        plan.devices.ranks.value if plan.numerics.sync_batchnorm.value else 1
    )


def why_not_smaller(plan: Plan) -> str:
    """Why the micro-batch cannot be cut any more."""
    if plan.micro_batches.largest_slot > 1 and _keeps_two(plan):
        where = "over the ranks" if plan.numerics.sync_batchnorm.value else "in every micro-batch"
        return (
            f"it is not cut below {plan.micro_batches.largest_slot}: BatchNorm needs more than 1 "
            f"sample {where}"
        )
    return "it cannot be cut: it holds 1 sample"


def recompute_activations(plan: Plan) -> Plan | None:
    """The same plan with activation checkpointing; None when it is on, when there is nothing to
    recompute, or when the job does not leave it open."""
    if plan.execution.activation_checkpointing.value or not plan.execution.may_recompute:
        return None
    reason = "a rank ran out of memory and the micro-batch cannot be cut"
    return with_memory(
        _untimed(plan, "activations are recomputed now").replace(
            revision=plan.revision + 1,
            activation_checkpointing=Decision(True, reason),
        )
    )


def halve_evaluate_batch(plan: Plan) -> Plan | None:
    """The batch of the evaluation halved, rounded up, until the largest one really shrinks."""
    asked = old = plan.evaluation.evaluate_batch_size.value
    samples = plan.batch.num_test_samples.value
    largest = _largest(samples, old)
    while old > 1:
        old = ceil(old / 2)
        if _largest(samples, old) < largest:
            reason = f"halved from {asked}: a rank ran out of memory in evaluation"
            return plan.replace(
                revision=plan.revision + 1,
                evaluate_batch_size=Decision(old, reason),
                shrunk=_remember(plan, "evaluate_batch_size", asked),
            )
    return None


def grow_segments(plan: Plan, environment: Mapping[str, str]) -> Plan | None:
    """The same plan with an allocator that does not fragment; None when that is set already, or
    when the user has settings of their own for the allocator."""
    names = (ALLOCATOR_VARIABLE, "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
    if plan.devices.device.value != "cuda" or any(
        n in plan.devices.worker_env or n in environment for n in names
    ):
        return None
    return plan.replace(
        revision=plan.revision + 1,
        worker_env={**plan.devices.worker_env, ALLOCATOR_VARIABLE: GROWING_SEGMENTS},
    )


def drop_rung(plan: Plan, rung: str, reason: str) -> Plan:
    """The same plan without a rung of speed, which the ranks have turned off already."""
    entry = _without(plan, rung)
    later = _untimed(plan, f"{rung} was dropped")
    if entry is not None and entry.samples_per_s is not None:
        rate, about = entry.samples_per_s, f"predicted for {rung}=off"
        later = later.replace(
            samples_per_s=Decision(rate, about),
            step_s=Decision(plan.batch.global_batch_size.value / rate, about),
        )
    if entry is not None and entry.memory_bytes is not None:
        about = f"predicted for {rung}=off"
        later = later.replace(memory_bytes=Decision(entry.memory_bytes, about))
    off: dict[str, Any] = {rung: Decision("off", f"dropped: {reason}")}
    return later.replace(revision=plan.revision + 1, **off)


def cost_without(plan: Plan, rung: str) -> str | None:
    """What a plan loses without a rung, as predicted; None where that is not known."""
    entry, rate = _without(plan, rung), plan.predicted.samples_per_s.value
    if entry is None or entry.samples_per_s is None or rate is None:
        return None
    return f"{entry.samples_per_s:,.0f} samples/s are predicted without it, {rate:,.0f} with it"


def _without(plan: Plan, rung: str) -> Alternative | None:
    return next((e for e in plan.predicted.alternatives if e.choice == f"{rung}=off"), None)


def changes_between(old: Plan, new: Plan) -> dict[str, dict[str, Any]]:
    """Each value that differs between two revisions, old and new."""
    before, after = old.decisions(), new.decisions()
    changed = {
        name: {"old": before[name].value, "new": after[name].value}
        for name in before
        if before[name].value != after[name].value and name not in _FOLLOWING
    }
    for name in sorted({*old.devices.worker_env, *new.devices.worker_env}):
        if old.devices.worker_env.get(name) != new.devices.worker_env.get(name):
            changed[name] = {
                "old": old.devices.worker_env.get(name),
                "new": new.devices.worker_env.get(name),
            }
    return changed


def what_would_fit(plan: Plan, *, is_fp64_needed: bool = False) -> list[str]:
    """What would help a plan whose micro-batch cannot shrink any more, the cheapest first."""
    choices = []
    on_gpu = plan.devices.device.value == "cuda"
    if on_gpu and plan.numerics.precision.value in ("fp32", "tf32"):
        choices.append("half the activations: `precision=bf16`, or fp16 on cards before Ampere")
    if plan.numerics.precision.value == "fp64" and not is_fp64_needed:
        choices.append("half of everything: `precision=fp32`")
    if not plan.execution.activation_checkpointing.value:
        choices.append(_checkpointing_would(plan))
    choices += _sharding_would(plan)
    choices.append("a smaller input or a smaller model, by the recipe's options")
    if on_gpu:
        choices.append("a GPU with more memory, or one that nobody else uses (`nvidia-smi`)")
    return choices


def _checkpointing_would(plan: Plan) -> str:
    now, then = predict_parts(plan), predict_parts(plan, is_checkpointed=True)
    if plan.execution.num_blocks == 0:
        return (
            "activation checkpointing, once the recipe says what is repeated: "
            "`def blocks(self, model): return list(model.layers)`"
        )
    figures = ""
    if now.activations is not None and then.activations is not None:
        figures = (
            f": activations {format_bytes(now.activations)} -> {format_bytes(then.activations)} "
            "per micro-batch"
        )
    return f"activation checkpointing{figures}: `activation_checkpointing=on`"


def _sharding_would(plan: Plan) -> list[str]:
    facts = facts_of(plan.parallel.strategy.value)
    if facts.has_zero_stages:
        return _zero_would(plan)
    if facts.is_sharded:
        offload = "keeping each rank's share in host memory, which is slow: `fsdp.offload=true`"
        is_offloaded = plan.parallel.offload.value is not None
        return ["more ranks: each holds less", *([] if is_offloaded else [offload])]
    state, ranks = predict_parts(plan).state, max(2, plan.devices.ranks.value)
    over = (
        f"over the {ranks} ranks" if plan.devices.ranks.value > 1 else f"over {ranks} GPUs or more"
    )
    share = format_bytes(ceil(state / ranks))
    return [
        f"sharding weights, gradients and optimizer state {over}, {format_bytes(state)} -> "
        f"{share} each (more ranks alone do not help, each holds the whole model): "
        "`strategy=fsdp`",
        "keeping that share in host memory, which is slow: `strategy=fsdp fsdp.offload=true`",
    ]


def _zero_would(plan: Plan) -> list[str]:
    kept = plan.parallel.offload.value or ""
    choices = ["more ranks: each holds less"]
    if plan.parallel.zero_stage.value != 3:
        choices.append("spreading the weights too: `deepspeed.stage=3`")
    elif "weights" not in kept:
        choices.append("weights in host memory, which is slow: `deepspeed.offload_parameters=true`")
    if "optimizer" not in kept:
        choices.append(
            "optimizer state in host memory, which is slow: `deepspeed.offload_optimizer=true`"
        )
    return choices


def _largest(samples: int, limit: int) -> int:
    return max((s.stop - s.start for s in split_evenly(0, samples, limit)), default=0)


def _remember(plan: Plan, name: str, asked: int) -> dict[str, int]:
    """What was asked for before the first cut stays what was asked for."""
    return {name: asked, **plan.history.shrunk}
