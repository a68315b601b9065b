"""How many samples run at a time: the micro-batch and checkpointing with the best predicted speed.

The largest micro-batch that fits is often not the fastest, and never needed: a global batch is the
same in more, smaller ones. Only what fits with room to spare is considered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil

from phalanx.errors import Finding, format_bytes
from phalanx.job.schema import Job
from phalanx.planner.batch.size import micro_batches_per_rank
from phalanx.planner.memory.budget import describe_room, room_for
from phalanx.planner.memory.prediction import (
    choose_activation_checkpointing,
    predict_parts,
    with_memory,
)
from phalanx.planner.schema.forecast import Forecast
from phalanx.planner.schema.micro_batches import BatchPlan
from phalanx.planner.schema.plan import Alternative, Decision, Plan

_ALIKE = 0.97  # of the best predicted speed: the simpler choice is taken
_SHOWN = 6
_MOST_SLOTS = 64  # micro-batches per rank and step that are considered, beyond that only halves

Predict = Callable[[Plan], Forecast | None]


@dataclass(frozen=True)
class Candidate:
    """One way to cut the batch."""

    plan: Plan
    bytes: int
    is_fitting: bool
    forecast: Forecast | None

    @property
    def rate(self) -> float:
        return self.forecast.samples_per_s if self.forecast is not None else 0.0

    @property
    def words(self) -> str:
        word = "on" if self.plan.execution.activation_checkpointing.value else "off"
        micro = self.plan.batch.micro_batch_size.value
        return f"micro_batch_size={micro} activation_checkpointing={word}"


def choose_micro_batch(
    job: Job, plan: Plan, previous: Plan | None, predict: Predict
) -> tuple[Plan, list[Finding]]:
    """The plan with its micro-batch, accumulation and activation checkpointing."""
    if not _is_open(job, plan, previous):
        return choose_activation_checkpointing(job, plan, previous)
    asked, findings = choose_activation_checkpointing(job, plan, None)
    found = [_judge(way, predict) for way in _ways(job, asked)]
    fitting = [candidate for candidate in found if candidate.is_fitting]
    if not fitting:
        smallest = min(found, key=lambda candidate: candidate.bytes)
        return _explained(smallest, f"nothing fits in {_limit(plan)}; this takes the least"), (
            findings
        )
    best = max(fitting, key=lambda candidate: candidate.rate)
    if plan.numerics.has_batchnorm or best.forecast is None:
        chosen = fitting[0]
        why = (
            "BatchNorm is per micro-batch"
            if plan.numerics.has_batchnorm
            else "speed is not predicted"
        )
        reason = f"the largest that fits in {_limit(plan)}: {why}"
    else:
        chosen = next(c for c in fitting if c.rate >= _ALIKE * best.rate)
        reason = f"{chosen.rate:,.0f} samples/s predicted, of what fits in {_limit(plan)} "
        reason += "the fastest" if chosen is best else f"within 3 % of the fastest ({best.words})"
    plan = _explained(chosen, reason)
    return plan.replace(
        alternatives=[*plan.predicted.alternatives, *_others(found, chosen)]
    ), findings


def _is_open(job: Job, plan: Plan, previous: Plan | None) -> bool:
    stated = (job.micro_batch_size, job.batch_per_gpu, job.gradient_accumulation)
    return (
        all(size is None for size in stated)
        and previous is None
        and plan.numerics.determinism.value != "exact"
        and plan.devices.device_bytes is not None
        and predict_parts(plan).activations is not None
    )


def _ways(job: Job, plan: Plan) -> Iterator[Plan]:
    """Plans to choose from, the simplest first: kept activations, then fewer micro-batches."""
    choices = [plan.execution.activation_checkpointing]
    is_known = (
        plan.predicted.footprint is not None and plan.predicted.footprint.checkpointed is not None
    )
    if job.activation_checkpointing == "auto" and plan.execution.num_blocks and is_known:
        choices = [
            Decision(False, "auto: activations are kept"),
            Decision(True, "auto: blocks run again in backward"),
        ]
    for choice in choices:
        for micro in _sizes(plan.micro_batches, plan.devices.ranks.value):
            yield plan.replace(
                activation_checkpointing=choice,
                micro_batch_size=Decision(micro, ""),
                accumulation=micro_batches_per_rank(
                    plan.batch.global_batch_size.value, micro, plan.devices.ranks.value
                ),
            )


def _sizes(batch: BatchPlan, ranks: int) -> list[int]:
    """Micro-batches that deal every rank the same number of slots, the largest first."""
    total, slots, sizes = batch.global_batch_size, 1, []
    while True:
        micro = ceil(total / (ranks * slots))
        sizes.append(micro)
        if micro == 1:
            return list(dict.fromkeys(sizes))
        slots = slots + 1 if slots < 4 or slots * 2 > _MOST_SLOTS > slots else slots * 2


def _judge(plan: Plan, predict: Predict) -> Candidate:
    assert plan.devices.device_bytes is not None
    size = predict_parts(plan).total
    fits = size <= room_for(plan.devices.device_bytes, plan.devices.ranks.value)
    return Candidate(plan, size, fits, predict(plan) if fits else None)


def _explained(candidate: Candidate, reason: str) -> Plan:
    plan = candidate.plan
    total, ranks = plan.batch.global_batch_size.value, plan.devices.ranks.value
    dealt = f"{total} / {ranks} ranks" + (
        f" / {plan.batch.accumulation.value}" if plan.batch.accumulation.value > 1 else ""
    )
    micro = Decision(plan.batch.micro_batch_size.value, f"{dealt}; {reason}")
    checkpointing = plan.execution.activation_checkpointing
    if checkpointing.reason.startswith("auto: "):
        checkpointing = Decision(
            checkpointing.value, f"{checkpointing.reason}; {format_bytes(candidate.bytes)} in all"
        )
    return with_memory(plan.replace(micro_batch_size=micro, activation_checkpointing=checkpointing))


def _limit(plan: Plan) -> str:
    assert plan.devices.device_bytes is not None
    return describe_room(plan.devices.device_bytes, plan.devices.ranks.value)


def _others(found: list[Candidate], chosen: Candidate) -> list[Alternative]:
    """What lost, the best first, and what nearly fitted."""
    others = [candidate for candidate in found if candidate is not chosen]
    slower = sorted((c for c in others if c.is_fitting), key=lambda c: (-c.rate, c.bytes))
    too_large = sorted((c for c in others if not c.is_fitting), key=lambda c: c.bytes)
    # The one that nearly fitted is what people ask for first.
    ranked = [*slower[: _SHOWN - len(too_large[:1])], *too_large]
    return [
        Alternative(
            choice=candidate.words,
            samples_per_s=candidate.rate or None,
            memory_bytes=candidate.bytes,
            why_not=_why_not(candidate, chosen),
        )
        for candidate in ranked[:_SHOWN]
    ]


def _why_not(candidate: Candidate, chosen: Candidate) -> str:
    if not candidate.is_fitting:
        return f"{format_bytes(candidate.bytes)}, more than {_limit(candidate.plan)}"
    if candidate.rate == 0 or chosen.rate == 0:
        return "smaller than needed"
    share = candidate.rate / chosen.rate - 1
    if share > 0:
        return f"{100 * share:.1f} % faster, but less simple"
    return f"{-100 * share:.0f} % slower"
