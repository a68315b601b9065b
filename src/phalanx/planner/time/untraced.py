"""Time and memory of a model that cannot be traced: lines through the steps `bench` measured."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import ceil

from phalanx.job.schema import Job
from phalanx.job.strategies import facts_of
from phalanx.machine import Gpu
from phalanx.machine.calibration import Calibration, MeasuredStep
from phalanx.planner.memory.prediction import make_footprint
from phalanx.planner.schema.footprint import Line, upper_lines
from phalanx.planner.schema.plan import Decision, Plan
from phalanx.planner.schema.trace import Trace
from phalanx.planner.time.bench_points import measured_steps
from phalanx.planner.time.corrections import AMONG_SPREAD, BEYOND_SPREAD


def probe_seconds(steps: list[MeasuredStep], micro_batch: int) -> tuple[float, float] | None:
    """(computing of one micro-batch with its update, spread): on the line through the two measured
    sizes that are nearest. With one size alone, larger ones take as much for each sample, and
    smaller ones as much in all. None without any."""
    known: dict[int, float] = {}
    for step in steps:
        computing = step.step_s - step.data_s - step.communication_s
        if computing > 0:
            known[step.micro_batch] = computing / step.accumulation
    if not known:
        return None
    sizes = sorted(known)
    if micro_batch in known:
        return known[micro_batch], AMONG_SPREAD
    if len(sizes) == 1:
        return known[sizes[0]] * max(1.0, micro_batch / sizes[0]), 2 * BEYOND_SPREAD
    pairs = list(pairwise(sizes))
    low, high = next((pair for pair in pairs if micro_batch < pair[1]), pairs[-1])
    slope = max(0.0, known[high] - known[low]) / (high - low)
    seconds = known[low] + slope * (micro_batch - low)
    spread = AMONG_SPREAD if sizes[0] < micro_batch < sizes[-1] else BEYOND_SPREAD
    # A line to the left may end below what anything takes: half of the smallest is the least.
    return max(seconds, known[sizes[0]] / 2), spread


def with_measured_activations(
    job: Job, trace: Trace, plan: Plan, cards: tuple[Gpu, ...], calibration: Calibration | None
) -> Plan:
    """The plan with activations as `bench` measured them, where they could not be traced."""
    footprint = plan.predicted.footprint
    if footprint is None or footprint.unknown is None or calibration is None:
        return plan
    for is_checkpointed in (False, True):
        way = Decision(is_checkpointed, "")
        steps = [
            step
            for step in measured_steps(calibration, plan.replace(activation_checkpointing=way))
            if step.allocated_bytes is not None
        ]
        if not steps:
            continue
        # Of one pass on one rank only the sum of activations and gradients is known: gradients come
        # while activations go.
        is_sum = facts_of(steps[0].strategy).is_for_one_rank and steps[0].accumulation == 1
        lines = _lines(
            {s.micro_batch: _activations(job, trace, plan, cards, s, is_sum) for s in steps}
        )
        both = lines if is_sum else None
        sizes = ", ".join(str(size) for size in sorted({step.micro_batch for step in steps}))
        source = f"activations as bench measured them with micro-batches of {sizes}"
        if is_checkpointed:
            footprint = replace(
                footprint, checkpointed=lines, checkpointed_with_gradients=both, source=source
            )
        else:
            footprint = replace(footprint, kept=lines, kept_with_gradients=both, source=source)
    return plan.replace(footprint=footprint)


def _activations(
    job: Job,
    trace: Trace,
    plan: Plan,
    cards: tuple[Gpu, ...],
    step: MeasuredStep,
    is_sum: bool,
) -> int:
    """What was allocated beyond all that is known; with the gradients where `is_sum`."""
    assert step.allocated_bytes is not None
    shards = step.ranks if facts_of(step.strategy).is_sharded else 1
    offload = plan.parallel.offload.value if step.strategy == plan.parallel.strategy.value else None
    footprint = make_footprint(
        job, trace, plan.numerics.precision.value, step.strategy, cards, shards, offload
    )
    parts = footprint.parts(
        micro_batch=step.micro_batch,
        samples=step.micro_batch * step.accumulation,
        is_checkpointed=False,
        shards=shards,
    )
    return max(0, step.allocated_bytes - parts.total + (parts.gradients if is_sum else 0))


def _lines(known: dict[int, int]) -> list[Line]:
    sizes = sorted(known)
    if len(sizes) == 1:
        return [Line(0, ceil(known[sizes[0]] / sizes[0]))]
    lines = [Line(0, 0)]
    for low, high in pairwise(sizes):
        slope = max(0, ceil((known[high] - known[low]) / (high - low)))
        lines.append(Line(known[high] - slope * high, slope))
    return upper_lines(lines)
