"""Bytes of weights, gradients and optimizer state that each rank holds, to the byte.

What is counted is what torch and DeepSpeed allocate: padding of shards counts, memory that an
allocator rounds up does not. Gradients are those after the backward of a step, before the update.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import Any, NamedTuple

from phalanx.job.schema import Job
from phalanx.job.strategies import facts_of
from phalanx.planner.schema.trace import Trace, Weight

_FP32 = 4
_STEP = 4  # AdamW counts its steps in one fp32 number for each tensor that it updates

# DeepSpeed 0.19's own defaults, in elements.
_ALWAYS_GATHERED = 100_000  # stage 3 never lets go of parameters up to this size
_SUB_GROUP = 1_000_000_000  # stage 3 updates at most so many at a time


class Share(NamedTuple):
    """Bytes on one rank, on its device or wherever they are offloaded to."""

    weights: int
    gradients: int
    optimizer: int
    """Moments, counts of steps and, under ZeRO, the fp32 weights that it updates."""
    average: int


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How the state of a run is spread, and in which types."""

    strategy: str
    shards: int = 1
    """Ranks that share one copy of what is spread."""
    stage: int = 0
    precision: str = "fp32"
    moments: int = 2
    """Tensors of a parameter's size that the optimizer keeps for it."""
    counts_steps: bool = True
    is_averaged: bool = False
    is_frozen_narrow: bool = False
    """Whether frozen weights are held in the precision of the run where they may be."""
    always_gathered: int = _ALWAYS_GATHERED
    sub_group: int = _SUB_GROUP

    @property
    def is_half(self) -> bool:
        return self.precision in ("bf16", "fp16")

    def itemsize(self, weight: Weight) -> int:
        """Bytes of one element as the strategy keeps the model's own weights."""
        if not weight.is_floating:
            return weight.itemsize
        if self.precision == "fp64":
            return 8
        if self.is_half and facts_of(self.strategy).has_half_weights:
            return 2
        is_narrow = self.is_frozen_narrow and weight.may_be_narrow(self.precision)
        return 2 if is_narrow else weight.itemsize

    def state(self, elements: int, itemsize: int, tensors: int = 1) -> int:
        """Bytes of the optimizer for some elements in some tensors."""
        return self.moments * elements * itemsize + self.counts_steps * tensors * _STEP

    def average(self, elements: int, itemsize: int) -> int:
        """Bytes of the average, which is kept in fp32 or wider."""
        return self.is_averaged * elements * max(itemsize, _FP32)


def layout_of(job: Job, *, strategy: str, precision: str, shards: int) -> Layout:
    """How a job's state is spread under a strategy."""
    is_adamw = job.optimizer.name == "adamw"
    given = job.deepspeed.config
    zero: dict[str, Any] = given.get("zero_optimization", {}) if isinstance(given, dict) else {}
    return Layout(
        strategy=strategy,
        shards=shards,
        stage=job.deepspeed.stage if facts_of(strategy).has_zero_stages else 0,
        precision=precision,
        moments=2 if is_adamw else int(bool(job.optimizer.momentum)),
        counts_steps=is_adamw,
        is_averaged=job.ema.decay is not None,
        is_frozen_narrow=job.frozen_precision != "full",
        always_gathered=_number(zero, "stage3_param_persistence_threshold", _ALWAYS_GATHERED),
        sub_group=_number(zero, "sub_group_size", _SUB_GROUP),
    )


def _number(settings: dict[str, Any], key: str, default: int) -> int:
    value = settings.get(key, default)
    return int(value) if isinstance(value, (int, float)) else default  # DeepSpeed takes 1e5, "auto"


def weights_of(trace: Trace) -> list[Weight]:
    """The parameters of a trace; as two flat ones where it does not list them."""
    if trace.weights:
        return trace.weights
    learning, all_bytes = trace.trainable_parameters, trace.parameter_bytes
    learning_bytes = trace.trainable_bytes
    if learning_bytes is None:
        learning_bytes = _FP32 * learning
    frozen, frozen_bytes = trace.parameters - learning, all_bytes - learning_bytes
    pairs = [(learning, learning_bytes, 0), (frozen, frozen_bytes, None)]
    return [
        Weight((count,), size // count, group is not None, group)
        for count, size, group in pairs
        if count > 0
    ]


def state_bytes(job: Job, trace: Trace, precision: str) -> int:
    """All of the state once: what the hosts keep of a copy that is offloaded."""
    layout = layout_of(job, strategy="single", precision=precision, shards=1)
    return sum(largest_share(weights_of(trace), layout))


def share_of(weights: Sequence[Weight], layout: Layout, rank: int) -> Share:
    """What a rank holds after the backward of a step."""
    place = rank % layout.shards
    facts = facts_of(layout.strategy)
    if not facts.is_sharded:
        return _whole(weights, layout)
    if not facts.has_zero_stages:
        return _sharded(weights, layout, place)
    cut = _cut_each if layout.stage == 3 else _cut_end_to_end
    return cut(weights, layout, place)


def largest_share(weights: Sequence[Weight], layout: Layout) -> Share:
    """What the rank holds that holds most: all begin to fill shards at the first rank, but where
    ZeRO keeps whole gradients of what is cut, any rank may have the largest parameters."""
    if not facts_of(layout.strategy).has_zero_stages or layout.stage == 3:
        return share_of(weights, layout, 0)
    most = [0] * layout.shards
    for group in _groups(weights):
        for rank, elements in enumerate(_touched(group, layout.shards)):
            most[rank] += elements * layout.itemsize(group[0])
    return share_of(weights, layout, most.index(max(most)))


def whole_weights(weights: Iterable[Weight], layout: Layout) -> int:
    """Bytes of the whole model."""
    return sum(w.elements * layout.itemsize(w) for w in weights)


def whole_gradients(weights: Iterable[Weight], layout: Layout) -> int:
    """Bytes of all gradients, before any rank lets go of some."""
    return sum(w.learns * w.elements * layout.itemsize(w) for w in weights)


def _whole(weights: Iterable[Weight], layout: Layout) -> Share:
    share = Share(0, 0, 0, 0)
    for weight in weights:
        share = _add(share, weight, layout, held=weight.elements, local=weight.elements)
    return share


def _sharded(weights: Iterable[Weight], layout: Layout, place: int) -> Share:
    """FSDP2 cuts each parameter along its first dimension as torch.chunk does and pads the parts of
    weights and gradients to the size of the first; the optimizer's state has no padding. (In torch
    2.13: `_fsdp_param.py`, padded_sharded_param_size; `_fsdp_collectives.py`, foreach_reduce.)"""
    share = Share(0, 0, 0, 0)
    for weight in weights:
        if not weight.shape:  # no dimension to cut: every rank keeps it
            share = _add(share, weight, layout, held=1, local=1)
            continue
        rows, row = weight.shape[0], prod(weight.shape[1:])
        chunk = ceil(rows / layout.shards)
        local = min(chunk, max(0, rows - place * chunk))
        share = _add(share, weight, layout, held=chunk * row, local=local * row)
    return share


def _add(share: Share, weight: Weight, layout: Layout, *, held: int, local: int) -> Share:
    size = layout.itemsize(weight)
    return Share(
        share.weights + held * size,
        share.gradients + weight.learns * held * size,
        share.optimizer + (0 if weight.group is None else layout.state(local, size)),
        share.average + weight.learns * layout.average(local, size),
    )


def _cut_end_to_end(weights: Sequence[Weight], layout: Layout, place: int) -> Share:
    """ZeRO 1 and 2 lay the parameters of an optimizer group end to end, pad to an even number of
    elements per rank, and keep fp32 weights and moments of a rank's stretch (DeepSpeed 0.19:
    stage_1_and_2.py, nccl_start_alignment_factor)."""
    others = [weight for weight in weights if weight.group is None]
    held = sum(weight.elements * layout.itemsize(weight) for weight in others)
    # Nobody updates them, and nobody clears them.
    gradients = sum(w.elements * layout.itemsize(w) for w in others if w.learns)
    optimizer = average = 0
    for group in _groups(weights):
        size, itemsize = _stretch(group, layout.shards), layout.itemsize(group[0])
        total = sum(weight.elements for weight in group)
        held += layout.shards * size * itemsize
        gradients += _touched(group, layout.shards)[place] * itemsize
        optimizer += size * _FP32 + layout.state(size, _FP32)
        average += layout.average(min(size, max(0, total - place * size)), _FP32)
    return Share(held, gradients, optimizer, average)


def _cut_each(weights: Sequence[Weight], layout: Layout, place: int) -> Share:
    """ZeRO 3 cuts each parameter into equal parts, the last one padded, and keeps small parameters
    whole besides (DeepSpeed 0.19: partition_parameters.py, _partition_param)."""
    held = gradients = optimizer = average = 0
    for weight in weights:
        part, itemsize = ceil(weight.elements / layout.shards), layout.itemsize(weight)
        is_kept = weight.elements <= layout.always_gathered
        held += (part + is_kept * part * layout.shards) * itemsize
        if weight.group is not None:
            gradients += part * itemsize
            optimizer += part * _FP32 + layout.state(part, _FP32, tensors=0)
            local = min(part, max(0, weight.elements - place * part))
            average += layout.average(local, _FP32)
    return Share(held, gradients, optimizer + _sub_groups(weights, layout) * _STEP, average)


def _sub_groups(weights: Sequence[Weight], layout: Layout) -> int:
    """How many flat tensors the optimizer gets at stage 3, if it counts its steps in each."""
    count = 0
    for group in _groups(weights):
        parts = [ceil(weight.elements / layout.shards) for weight in group]
        filled = 0
        for part in parts:
            filled += part
            if filled >= layout.sub_group:
                count, filled = count + 1, 0
        count += filled > 0
    return count * layout.counts_steps


def _groups(weights: Iterable[Weight]) -> list[list[Weight]]:
    groups: dict[int, list[Weight]] = {}
    for weight in weights:
        if weight.group is not None:
            groups.setdefault(weight.group, []).append(weight)
    return list(groups.values())


def _stretch(group: Iterable[Weight], shards: int) -> int:
    """Elements of a group on each rank."""
    return 2 * ceil(sum(weight.elements for weight in group) / (2 * shards))


def _touched(group: Sequence[Weight], shards: int) -> list[int]:
    """Elements of gradients that each rank keeps of a group: of every parameter that reaches into
    its stretch the whole gradient, and zeros for the padding."""
    size, position = _stretch(group, shards), 0
    kept = [0] * shards
    for weight in group if size else ():
        last = max(position, position + weight.elements - 1)
        for rank in range(position // size, last // size + 1):
            kept[rank] += weight.elements
        position += weight.elements
    for rank in range(shards):
        kept[rank] += size - min(size, max(0, position - rank * size))
    return kept
