"""Predicted memory of a plan, and whether activations are recomputed because of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from phalanx.errors import Finding, format_bytes
from phalanx.job.schema import Job
from phalanx.job.strategies import facts_of
from phalanx.machine import Gpu
from phalanx.machine.gpu_checks import left_by_others
from phalanx.planner.memory.budget import (
    TENSORS_SPREAD,
    describe_interval,
    describe_room,
    process_bytes,
    room_for,
)
from phalanx.planner.memory.shares import largest_share, layout_of, weights_of, whole_gradients
from phalanx.planner.memory.working_copies import Copies, copies_less, gathered_by
from phalanx.planner.schema.footprint import (
    CHANNELS_LAST,
    COMPILED,
    WITH_GRADIENTS,
    Footprint,
    Line,
    Parts,
    upper_lines,
)
from phalanx.planner.schema.micro_batches import deal
from phalanx.planner.schema.plan import Decision, Plan
from phalanx.planner.schema.trace import Trace


def make_footprint(
    job: Job,
    trace: Trace,
    precision: str,
    strategy: str,
    cards: Iterable[Gpu] = (),
    shards: int = 1,
    offload: str | None = None,
) -> Footprint:
    """What the model and a sample take in this precision, with the job's optimizer, on the rank
    that holds most; `shards` ranks share a copy of what the strategy spreads, `offload` is what a
    plan keeps in host memory."""
    is_half = precision in ("bf16", "fp16")
    wide = 2 if precision == "fp64" else 1  # every other one leaves activations as they are
    weights = weights_of(trace)
    layout = layout_of(job, strategy=strategy, precision=precision, shards=shards)
    share = largest_share(weights, layout)
    gradients = share.gradients
    if layout.stage == 1:  # whole until backward is over
        gradients = whole_gradients(weights, layout)
    traced = "bf16" if is_half else "fp32"
    if precision == "tf32" and "tf32" in trace.activation_bytes:
        traced = "tf32"
    is_compiled = job.compile == "on"
    traced += COMPILED * is_compiled
    if job.channels_last == "on" and traced + CHANNELS_LAST in trace.activation_bytes:
        traced += CHANNELS_LAST
    less = copies_less(job, trace, weights, strategy) if is_half else Copies()
    gathered = gathered_by(job, trace, is_half, strategy)
    return Footprint(
        weight_bytes=share.weights,
        gradient_bytes=gradients,
        optimizer_bytes=share.optimizer,
        average_bytes=share.average,
        offloaded=_offloaded(strategy, offload or ""),
        gathered_bytes=wide * gathered.weights,
        unreduced_bytes=wide * gathered.block_gradients,
        last_reduced_bytes=wide * gathered.outside_gradients,
        input_bytes=trace.input_bytes or 0,
        kept=_changed(trace.activation_bytes.get(traced), wide, less.kept),
        checkpointed=_changed(trace.checkpointed_bytes.get(traced), wide, less.checkpointed),
        kept_with_gradients=_changed(
            trace.activation_bytes.get(traced + WITH_GRADIENTS), wide, less.kept
        ),
        checkpointed_with_gradients=_changed(
            trace.checkpointed_bytes.get(traced + WITH_GRADIENTS), wide, less.checkpointed
        ),
        workspace_bytes=_workspaces(cards),
        source=(
            f"run with the values of real samples: {trace.activations_sampled}"
            if trace.activations_sampled
            else None
        ),
        unknown=trace.activations_unknown or (trace.compiled_unknown if is_compiled else None),
    )


def _workspaces(cards: Iterable[Gpu]) -> int:
    """cuBLAS gets a workspace for each thread that multiplies: the one of forward and autograd's
    (pytorch.org/docs, "CUBLAS workspaces": 32 MiB on Hopper, otherwise 2 x 4 MiB + 8 x 16 KiB)."""
    newest = max((card.compute_capability or (0, 0) for card in cards), default=None)
    if newest is None:
        return 0
    return 2 * (32 * 2**20 if newest >= (9, 0) else 2 * 4 * 2**20 + 8 * 16 * 2**10)


def least_bytes(
    job: Job,
    trace: Trace,
    precision: str,
    strategy: str,
    cards: Iterable[Gpu],
    shards: int = 1,
    offload: str | None = None,
    *,
    is_checkpointed: bool = True,
) -> int:
    """What a rank needs with the smallest micro-batch, with checkpointing where it is known."""
    footprint = make_footprint(job, trace, precision, strategy, cards, shards, offload)
    micro = smallest_micro_batch(trace)
    return footprint.parts(
        micro_batch=micro,
        samples=micro,
        is_checkpointed=is_checkpointed and footprint.checkpointed is not None,
        shards=shards,
    ).total


def smallest_micro_batch(trace: Trace) -> int:
    return 2 if trace.has_batchnorm else 1


def _offloaded(strategy: str, offload: str) -> list[str]:
    if offload and not facts_of(strategy).has_zero_stages:
        return ["weights", "gradients", "optimizer", "average"]
    return ["optimizer", "average"] * ("optimizer" in offload) + ["weights"] * (
        "weights" in offload
    )


def _changed(lines: list[Line] | None, wide: int, less: int) -> list[Line] | None:
    if lines is None:
        return None
    return upper_lines(
        Line(max(0, wide * line.fixed - less), wide * line.per_sample) for line in lines
    )


def predict_parts(plan: Plan, *, is_checkpointed: bool | None = None) -> Parts:
    """What one rank of a plan holds at its peak, as planned or with the other checkpointing."""
    batch, ranks = plan.micro_batches, plan.devices.ranks.value
    if is_checkpointed is None:
        is_checkpointed = plan.execution.activation_checkpointing.value
    busiest = deal(batch.num_slots, 0, ranks)[1]
    samples = min(batch.global_batch_size, busiest * batch.micro_batch_size)
    determinism = plan.numerics.determinism.value
    facts = facts_of(plan.parallel.strategy.value, determinism)
    footprint = plan.predicted.footprint or _footprint_of_older(plan)
    return footprint.parts(
        micro_batch=batch.largest_slot,
        samples=samples,
        is_checkpointed=is_checkpointed,
        # The slot's own, its row, and a row for each level of the slot tree.
        gradient_copies=2 + busiest.bit_length() if determinism == "exact" else 1,
        shards=plan.parallel.shard_ranks.value,
        is_one_pass=busiest == 1 and not facts.has_gradient_buffers,
        # What is captured runs on a stream of its own (61 to 84 MiB more on an H200).
        streams=2 if plan.execution.cuda_graph.value == "on" else 1,
    )


def _footprint_of_older(plan: Plan) -> Footprint:
    """Of a plan made before memory was predicted: as if every parameter learned."""
    optimizer = plan.history.identity.get("optimizer", {})
    size = plan.predicted.parameters.value * (8 if plan.numerics.precision.value == "fp64" else 4)
    return Footprint(
        weight_bytes=size,
        gradient_bytes=size,
        optimizer_bytes=size * (2 if optimizer.get("name") == "adamw" else 1),
        average_bytes=size if plan.learning.ema.value is not None else 0,
        unknown="the plan is of an earlier version",
    )


def predict_memory(plan: Plan) -> Decision[int | None]:
    """Peak bytes on one rank, and what they are for."""
    parts = predict_parts(plan)
    reason = f"{parts}; micro-batch {plan.micro_batches.largest_slot}"
    if parts.activations is not None and plan.devices.device.value == "cuda":
        reason += (
            f"; {describe_interval(parts.total + plan.loading.device_data_bytes, TENSORS_SPREAD)}"
        )
    if parts.activations is None:
        why = plan.predicted.footprint.unknown if plan.predicted.footprint is not None else None
        reason += f"; activations are not counted: {why or 'not traced'}"
    elif plan.predicted.footprint is not None and plan.predicted.footprint.source is not None:
        reason += f"; {plan.predicted.footprint.source}"
    total = parts.total + plan.loading.device_data_bytes
    if plan.loading.device_data_bytes:
        reason += f"; {format_bytes(plan.loading.device_data_bytes)} of it data"
    if plan.devices.device_bytes is not None:
        share = round(100 * total / plan.devices.device_bytes)
        reason += f"; {share} % of {format_bytes(plan.devices.device_bytes)}"
    return Decision(total, reason)


def with_memory(plan: Plan) -> Plan:
    """The plan with its own prediction."""
    memory = predict_memory(plan)
    held: Decision[int | None] = Decision(None, "only CUDA's is predicted")
    if plan.devices.device.value == "cuda" and memory.value is not None:
        held = Decision(*process_bytes(memory.value, plan.devices.ranks.value))
    return plan.replace(memory_bytes=memory, process_bytes=held)


def fits_for_sure(plan: Plan) -> bool:
    """Return True if the upper end of what a process may hold is there, or nothing is known."""
    if plan.devices.device_bytes is None or plan.predicted.memory_bytes.value is None:
        return True
    return plan.predicted.memory_bytes.value <= room_for(
        plan.devices.device_bytes, plan.devices.ranks.value
    )


def smallest_memory(cards: Iterable[Gpu]) -> int | None:
    """Bytes that the rank on the smallest GPU may have: without what others hold there, and its
    share where several ranks are on one."""
    cards = list(cards)
    ranks = Counter(card.index for card in cards)
    there = ((left_by_others(card) or 0) // ranks[card.index] for card in cards)
    return min((size for size in there if size), default=None)


def choose_activation_checkpointing(
    job: Job, plan: Plan, previous: Plan | None
) -> tuple[Plan, list[Finding]]:
    """The plan with blocks that run again in backward, or without, by wish or by prediction."""
    word = job.activation_checkpointing
    asked = f"activation_checkpointing = {word}"
    if plan.execution.num_blocks == 0:
        decision = Decision(False, f"{asked}; the model has no repeated part")
        findings = [_no_blocks(asked)] if word == "on" else []
        return with_memory(plan.replace(activation_checkpointing=decision)), findings
    if word == "auto":
        decision = _by_prediction(plan, previous)
    else:
        effect = {
            "on": "run their forward again in backward",
            "off": "keep what backward needs",
        }[word]
        decision = Decision(word == "on", f"{asked}: {plan.execution.num_blocks} blocks {effect}")
    plan = plan.replace(activation_checkpointing=decision, may_recompute=word == "auto")
    return with_memory(plan), []


def _by_prediction(plan: Plan, previous: Plan | None) -> Decision[bool]:
    if previous is not None and previous.execution.activation_checkpointing.value:
        return Decision(True, "kept from the run")
    if plan.devices.device_bytes is None:
        return Decision(False, f"auto: the memory of {plan.devices.device.value} is not watched")
    without = predict_parts(plan, is_checkpointed=False)
    if without.activations is None:
        return Decision(False, "auto: activations could not be predicted")
    limit = describe_room(plan.devices.device_bytes, plan.devices.ranks.value)
    if without.total <= room_for(plan.devices.device_bytes, plan.devices.ranks.value):
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
