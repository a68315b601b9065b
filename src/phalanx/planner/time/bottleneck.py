"""What holds a measured step up, and what to change: pure arithmetic on what `bench` measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from phalanx.errors import format_seconds
from phalanx.machine.calibration import MeasuredStep
from phalanx.planner.schema.plan import Plan

_WORTH = 0.15  # of a step: less is not worth a change
_BETTER = 1.05  # times the throughput: less is noise


@dataclass(frozen=True)
class Bottleneck:
    """The part of a step that decides how long it takes."""

    part: str
    """`data`, `communication`, `overhead` or `compute`."""
    micro_batch: int
    what: str
    change: str | None
    """What to change, with a line to paste; None when nothing is worth it."""


def throughput(step: MeasuredStep) -> float:
    """Samples per second of all ranks."""
    return step.micro_batch * step.accumulation * step.ranks / step.step_s


def find_bottleneck(plan: Plan, steps: Sequence[MeasuredStep], *, cores: int) -> Bottleneck | None:
    """Of the step that was planned, or of the measured one that is nearest to it; `cores` are those
    of the machine. None without steps."""
    if not steps:
        return None
    planned = plan.micro_batches.largest_slot
    step = min(steps, key=lambda s: (abs(s.micro_batch - planned), s.micro_batch))
    waits = {
        "data": step.data_s,
        "communication": step.communication_s,
        "overhead": step.overhead_s,
    }
    part = max(waits, key=lambda name: waits[name])
    if waits[part] < _WORTH * step.step_s:
        part = "compute"
    share = round(100 * getattr(step, f"{part}_s") / step.step_s)
    at = f"at micro-batch {step.micro_batch} {share} % of a step"
    fastest = max(steps, key=throughput)
    change: str | None
    if part == "data":
        what, change = f"{at} waits for samples", _more_loaders(plan, step, cores)
    elif part == "communication":
        what = f"{at} is communication that computing does not hide"
        change = _exchange_less(plan)
    elif part == "overhead":
        what = f"{at} the device waits for the host, which starts its operators one by one"
        change = _larger(step, fastest)
    else:
        what, change = f"{at} the device computes", _compute_less(plan)
        if change is None and is_faster(fastest, step):
            change = _take(fastest, step)
    return Bottleneck(part, step.micro_batch, what, change)


def is_faster(one: MeasuredStep, other: MeasuredStep) -> bool:
    """Whether a step's throughput is better by more than noise."""
    return throughput(one) > _BETTER * throughput(other)


def _more_loaders(plan: Plan, step: MeasuredStep, cores: int) -> str:
    """As many loader processes as fetch a step's samples while the rest of the step runs."""
    samples = step.micro_batch * step.accumulation
    fetching = samples * step.fetch_s
    rest = max(step.step_s - step.data_s, 1e-9)
    needed = max(1, ceil(fetching / rest))
    here = max(1, cores // step.ranks)
    arithmetic = (
        f"{samples} samples x {format_seconds(step.fetch_s)} = {format_seconds(fetching)} to "
        f"fetch, {format_seconds(rest)} to compute meanwhile"
    )
    if needed <= plan.loading.workers.value:
        return (
            f"{arithmetic}: {plan.loading.workers.value} loader processes should do, so look at "
            "what they share: storage, or cores that the training itself needs"
        )
    if plan.devices.device.value == "cpu":
        return f"{arithmetic}: on a CPU both take the same cores; make a sample cheaper to fetch"
    if needed > here:
        return (
            f"{arithmetic}: {needed} loader processes for {here} cores of this rank; "
            f"`loader.workers={here}`, and make a sample cheaper to fetch"
        )
    return f"{arithmetic}: `loader.workers={needed}`"


def _exchange_less(plan: Plan) -> str:
    twice = 2 * plan.batch.accumulation.value
    return (
        f"exchange half as often, with twice the global batch: `gradient_accumulation={twice}`; or "
        "a faster link between the ranks (`phalanx check` shows it)"
    )


def _larger(step: MeasuredStep, fastest: MeasuredStep) -> str:
    if fastest.micro_batch > step.micro_batch and is_faster(fastest, step):
        return _take(fastest, step)
    return (
        "a larger micro-batch gives each operator more to do: try "
        f"`--micro {2 * step.micro_batch},{4 * step.micro_batch}`"
    )


def _take(fastest: MeasuredStep, step: MeasuredStep) -> str:
    gain = round(100 * (throughput(fastest) / throughput(step) - 1))
    return (
        f"{gain} % more samples per second with `micro_batch_size={fastest.micro_batch}`: "
        f"{throughput(fastest):,.0f} instead of {throughput(step):,.0f}"
    )


def _compute_less(plan: Plan) -> str | None:
    if plan.devices.device.value != "cuda":
        return None
    if plan.numerics.precision.value in ("fp32", "tf32", "fp64"):
        return (
            f"precision is {plan.numerics.precision.value}: `precision=bf16`, or fp16 before Ampere"
        )
    if plan.execution.activation_checkpointing.value:
        return (
            "a quarter of it is activations computed twice: `activation_checkpointing=off`, if "
            "they fit"
        )
    return None
