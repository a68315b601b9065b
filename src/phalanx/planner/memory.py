"""Predicted memory of a plan, and whether activations are recomputed because of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from phalanx.errors import Finding, format_bytes
from phalanx.job.schema import Job
from phalanx.machine import Gpu
from phalanx.planner.batch import deal
from phalanx.planner.deepspeed import BUCKET
from phalanx.planner.footprint import Footprint, Line, Parts, upper_lines
from phalanx.planner.plan import Decision, Plan
from phalanx.planner.trace import Trace

FULL = 0.85  # the rest is for CUDA's own memory, NCCL's buffers and what fragments


def make_footprint(job: Job, trace: Trace, precision: str, strategy: str) -> Footprint:
    """What the model and a sample take in this precision, with the job's optimizer."""
    is_half = precision in ("bf16", "fp16")
    wide = 2 if precision == "fp64" else 1  # every other one leaves the weights as they are
    trainable = trace.trainable_bytes
    if trainable is None:
        trainable = 4 * trace.trainable_parameters
    average = max(trainable, 4 * trace.trainable_parameters)  # kept in fp32 or wider
    copies = 2 if job.optimizer.name == "adamw" else int(bool(job.optimizer.momentum))
    weights, gradients = trace.parameter_bytes, trainable
    if strategy == "deepspeed":
        copies += 1  # ZeRO updates fp32 weights of its own
        if is_half:
            weights, gradients = weights // 2, gradients // 2
    traced = "bf16" if is_half else "fp32"
    # Where weights are in 16 bits already, autocast makes no copies of them.
    uncopied = trace.parameter_bytes // 2 if is_half and strategy in ("fsdp", "deepspeed") else 0
    return Footprint(
        weight_bytes=wide * weights,
        gradient_bytes=wide * gradients,
        optimizer_bytes=wide * copies * trainable,
        average_bytes=wide * average if job.ema.decay is not None else 0,
        spread=_spread(job, strategy),
        offloaded=_offloaded(job, strategy),
        gathered_bytes=wide * _gathered(job, trace, is_half, strategy),
        input_bytes=trace.input_bytes or 0,
        kept=_changed(trace.activation_bytes.get(traced), wide, uncopied),
        checkpointed=_changed(trace.checkpointed_bytes.get(traced), wide, uncopied),
        unknown=trace.activations_unknown,
    )


def _spread(job: Job, strategy: str) -> list[str]:
    everything = ["optimizer", "average", "gradients", "weights"]
    stage = {"fsdp": 3, "deepspeed": job.deepspeed.stage}.get(strategy, 0)
    return everything[: stage + 1] if stage else []


def _offloaded(job: Job, strategy: str) -> list[str]:
    if strategy == "fsdp" and job.fsdp.offload:
        return ["weights", "gradients", "optimizer", "average"]
    if strategy != "deepspeed":
        return []
    settings = job.deepspeed
    return ["optimizer", "average"] * settings.offload_optimizer + (
        ["weights"] * settings.offload_parameters
    )


def _gathered(job: Job, trace: Trace, is_half: bool, strategy: str) -> int:
    """Weights: the part outside of the blocks, a block and the next one. Gradients: those of a
    block before they are spread, or DeepSpeed's bucket for all of them."""
    if strategy not in ("fsdp", "deepspeed"):
        return 0
    block = trace.largest_block_bytes
    weights = trace.outside_bytes + 2 * block
    if strategy == "fsdp" and not job.fsdp.reshard_after_forward:
        weights = trace.parameter_bytes
    gradients = block
    if strategy == "deepspeed":
        gradients = min(trace.parameter_bytes, 4 * BUCKET) // (2 if is_half else 1)
        weights = weights if job.deepspeed.stage == 3 else 0
    return (weights // 2 if is_half else weights) + gradients


def _changed(lines: list[Line] | None, wide: int, less: int) -> list[Line] | None:
    if lines is None:
        return None
    return upper_lines(
        Line(max(0, wide * line.fixed - less), wide * line.per_sample) for line in lines
    )


def predict_parts(plan: Plan, *, is_checkpointed: bool | None = None) -> Parts:
    """What one rank of a plan holds at its peak, as planned or with the other checkpointing."""
    batch, ranks = plan.batch, plan.ranks.value
    if is_checkpointed is None:
        is_checkpointed = plan.activation_checkpointing.value
    busiest = deal(batch.num_slots, 0, ranks)[1]
    samples = min(batch.global_batch_size, busiest * batch.micro_batch_size)
    is_exact = plan.determinism.value == "exact"
    footprint = plan.footprint or _footprint_of_older(plan)
    return footprint.parts(
        micro_batch=batch.largest_slot,
        samples=samples,
        is_checkpointed=is_checkpointed,
        # The slot's own, its row, and a row for each level of the slot tree.
        gradient_copies=2 + busiest.bit_length() if is_exact else 1,
        shards=plan.shard_ranks.value,
    )


def _footprint_of_older(plan: Plan) -> Footprint:
    """Of a plan made before memory was predicted: as if every parameter learned."""
    optimizer = plan.identity.get("optimizer", {})
    size = plan.parameters.value * (8 if plan.precision.value == "fp64" else 4)
    return Footprint(
        weight_bytes=size,
        gradient_bytes=size,
        optimizer_bytes=size * (2 if optimizer.get("name") == "adamw" else 1),
        average_bytes=size if plan.ema.value is not None else 0,
        unknown="the plan is of an earlier version",
    )


def predict_memory(plan: Plan) -> Decision[int | None]:
    """Peak bytes on one rank, and what they are for."""
    parts = predict_parts(plan)
    reason = f"{parts}; micro-batch {plan.batch.largest_slot}"
    if parts.activations is None:
        why = plan.footprint.unknown if plan.footprint is not None else None
        reason += f"; activations are not counted: {why or 'not traced'}"
    if plan.device_bytes is not None:
        share = round(100 * parts.total / plan.device_bytes)
        reason += f"; {share} % of {format_bytes(plan.device_bytes)}"
    return Decision(parts.total, reason)


def with_memory(plan: Plan) -> Plan:
    """The plan with its own prediction."""
    return replace(plan, memory_bytes=predict_memory(plan))


def smallest_memory(cards: Iterable[Gpu]) -> int | None:
    """Bytes of the GPU that has the least."""
    return min((card.memory_total_bytes for card in cards if card.memory_total_bytes), default=None)


def choose_activation_checkpointing(
    job: Job, plan: Plan, previous: Plan | None
) -> tuple[Plan, list[Finding]]:
    """The plan with blocks that run again in backward, or without, by wish or by prediction."""
    word = job.activation_checkpointing
    asked = f"activation_checkpointing = {word}"
    if plan.num_blocks == 0:
        decision = Decision(False, f"{asked}; the model has no repeated part")
        findings = [_no_blocks(asked)] if word == "on" else []
        return with_memory(replace(plan, activation_checkpointing=decision)), findings
    if word == "auto":
        decision = _by_prediction(plan, previous)
    else:
        effect = {
            "on": "run their forward again in backward",
            "off": "keep what backward needs",
        }[word]
        decision = Decision(word == "on", f"{asked}: {plan.num_blocks} blocks {effect}")
    plan = replace(plan, activation_checkpointing=decision, may_recompute=word == "auto")
    return with_memory(plan), []


def _by_prediction(plan: Plan, previous: Plan | None) -> Decision[bool]:
    if previous is not None and previous.activation_checkpointing.value:
        return Decision(True, "kept from the run")
    if plan.device_bytes is None:
        return Decision(False, f"auto: the memory of {plan.device.value} is not watched")
    without = predict_parts(plan, is_checkpointed=False)
    if without.activations is None:
        return Decision(False, "auto: activations could not be predicted")
    limit = f"{round(100 * FULL)} % of {format_bytes(plan.device_bytes)}"
    if without.total <= FULL * plan.device_bytes:
        return Decision(
            False, f"auto: {format_bytes(without.total)} without it, which is within {limit}"
        )
    with_it = predict_parts(plan, is_checkpointed=True)
    return Decision(
        True,
        f"auto: {format_bytes(without.total)} without it, more than {limit}; "
        f"{format_bytes(with_it.total)} with it",
    )


def _no_blocks(asked: str) -> Finding:
    return Finding(
        slug="no-blocks",
        what=f"{asked} changes nothing: the model has 0 blocks, it needs 1 or more",
        why="the recipe names none, and no nn.ModuleList or nn.Sequential of the model holds "
        "several modules of one kind that have weights and parts of their own",
        fix="name them in the recipe: `def blocks(self, model): return list(model.layers)`",
        severity="warning",
    )
