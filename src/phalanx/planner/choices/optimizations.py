"""The rungs of speed besides compiled code (`time/compile_gain.py`): which are taken, and why.

A key that says `on` or `off` is followed; `auto` goes by what is known of model and machine, and is
off under `fast: off`. A run that goes on keeps what it had: a rung that was dropped stays dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from phalanx.errors import Finding, format_bytes, format_seconds
from phalanx.job.schema import Job
from phalanx.job.strategies import facts_of
from phalanx.machine import Gpu
from phalanx.planner.memory.budget import room_for
from phalanx.planner.memory.prediction import make_footprint, predict_parts
from phalanx.planner.schema.forecast import Forecast
from phalanx.planner.schema.plan import Alternative, Decision, Plan
from phalanx.planner.schema.trace import Trace

# Fewer convolutions, such as the one that cuts an image into patches, are no matter. With more the
# layout halves a step on an H200 (benchmarks/planner/layouts.py): ResNet-50 at 256 106 -> 55 ms, a
# U-Net at 96 201 -> 98, YOLO11n at 64 103 -> 47, MobileNet (depthwise) at 128 56 -> 23;
# EfficientNet 48 -> 42. GroupNorm has no kernel for it outside compiled code: a U-Net with one
# after each convolution 39 -> 51 ms of the device (benchmarks/planner/measured).
_FEW_CONVOLUTIONS = 4
_FEW_GROUP_NORMS = 0.25  # for each convolution
# cuDNN's search for kernels, on the same card: none of the above gained more than 2 % in half
# precision, a decoder of transposed convolutions under TF32 took 17 ms instead of 27; it took 5 to
# 20 s, once for each size of batch in each process.
_SEARCH_S = 20.0
_SEARCH_GAIN = 0.1
_TENSOR_CORES = ("bf16", "fp16", "tf32")


class _Against(NamedTuple):
    """What speaks against a rung, and what to change."""

    what: str
    fix: str
    is_certain: bool = True
    """Whether it cannot be had at all; otherwise it may be forced."""


def settle_rung(job: Job, name: str, previous: Plan | None) -> Decision[str]:
    """`on`, `off`, or `auto` where it is still to be chosen."""
    word: str = getattr(job, name)
    if word != "auto":
        return Decision(word, f"{name} = {word}")
    if job.fast == "off":
        return Decision("off", "fast = off")
    if previous is not None:
        kept: Decision[str] = getattr(previous.execution, name)
        return Decision(kept.value, f"kept from the run: {kept.reason.removeprefix(_KEPT)}")
    return Decision("auto", "")


_KEPT = "kept from the run: "


def channels_last_pays(convolutions: int, precision: str) -> bool:
    """Whether convolutions are a large part of the model, and on tensor cores."""
    return precision in _TENSOR_CORES and convolutions >= _FEW_CONVOLUTIONS


def choose_channels_last(
    job: Job,
    trace: Trace,
    previous: Plan | None,
    *,
    device: str,
    strategy: str,
    precision: str,
    is_compiled: bool,
) -> tuple[Decision[str], list[Finding]]:
    """Whether images and convolutions have their channels last."""
    settled = settle_rung(job, "channels_last", previous)
    if settled.value == "off":
        return settled, []
    convolutions = trace.convolutions
    known = f"{convolutions} 2-D convolutions in {precision}"
    against = None
    if not facts_of(strategy).takes_channels_last:
        against = _Against(
            f"{strategy} cuts weights along rows of the plain layout", "strategy=ddp"
        )
    elif job.determinism == "exact":
        against = _Against(
            "determinism = exact adds up gradients in the plain layout", "determinism=resume"
        )
    if settled.value == "on":
        return _forced("channels_last", settled, against, strategy, device)
    if convolutions == 0:
        return Decision("off", "auto: the model has no 2-D convolution"), []
    if device != "cuda":
        return Decision("off", f"auto: {device} has no tensor cores that want it; {known}"), []
    if against is not None:
        return Decision("off", f"auto: {against.what}; {known}"), []
    if not channels_last_pays(convolutions, precision):
        words = ", ".join(_TENSOR_CORES)
        reason = f"auto: {known}; it is taken from {_FEW_CONVOLUTIONS} on, in {words}"
        return Decision("off", reason), []
    norms = 0 if is_compiled else _count_group_norms(trace)
    if norms > _FEW_GROUP_NORMS * convolutions:
        reason = f"{norms} GroupNorms, which have no kernel for it, would turn tensors around"
        return Decision("off", f"auto: {known}; {reason}"), []
    return Decision("on", f"auto: {known}: nothing is turned around for tensor cores"), []


def _count_group_norms(trace: Trace) -> int:
    operators = next(iter(trace.operators.values()), [])
    return sum(o.times for o in operators if o.name == "native_group_norm")


def choose_cuda_graph(
    job: Job, trace: Trace, plan: Plan, previous: Plan | None, forecast: Forecast | None
) -> tuple[Decision[str], list[Finding]]:
    """Whether a whole step is recorded and repeated; `forecast` is that of the plan without."""
    settled = settle_rung(job, "cuda_graph", previous)
    if settled.value == "off":
        return settled, []
    changes = job.schedule.warmup_momentum is not None and job.optimizer.name == "sgd"
    against = _against_graph(trace, plan, has_momentum_warmup=changes)
    if settled.value == "on":
        is_possible = against is None or not against.is_certain
        return _forced(
            "cuda_graph",
            settled,
            None if is_possible else against,
            plan.parallel.strategy.value,
            plan.devices.device.value,
        )
    if against is not None:
        return Decision("off", f"auto: {against.what}"), []
    reason = f"auto: {plan.micro_batches.num_slots} micro-batches a step on one GPU"
    if forecast is not None:
        reason += (
            f"; the host starts operators for {format_seconds(forecast.host_s)} of a step, the "
            f"device computes for {format_seconds(forecast.device_s)}"
        )
    return Decision("on", reason), []


def choose_cudnn_search(
    job: Job, trace: Trace, plan: Plan, previous: Plan | None, forecast: Forecast | None
) -> Decision[str]:
    """Whether cuDNN tries its kernels out instead of going by its own rules."""
    settled = settle_rung(job, "cudnn_search", previous)
    if settled.value != "auto":
        return settled
    if plan.devices.device.value != "cuda":
        return Decision("off", f"auto: {plan.devices.device.value} has no cuDNN")
    if trace.convolutions == 0:
        return Decision("off", "auto: the model has no 2-D convolution")
    if plan.numerics.determinism.value != "fast":
        reason = (
            f"determinism = {plan.numerics.determinism.value}: each process would choose for itself"
        )
        return Decision("off", f"auto: {reason}")
    if plan.numerics.precision.value in ("bf16", "fp16"):
        reason = (
            f"cuDNN's own rules are as good in {plan.numerics.precision.value}, and need no search"
        )
        return Decision("off", f"auto: {reason}")
    if forecast is None:
        return Decision("off", "auto: how long the job takes is not known")
    numbers = (
        f"the search takes up to {_SEARCH_S:.0f} s of {format_seconds(forecast.duration_s)} and is "
        f"worth {100 * _SEARCH_GAIN:.0f} % in {plan.numerics.precision.value}"
    )
    is_repaid = _SEARCH_GAIN * forecast.duration_s > _SEARCH_S
    return Decision("on" if is_repaid else "off", f"auto: {numbers}")


def _against_graph(
    trace: Trace, plan: Plan, *, has_momentum_warmup: bool = False
) -> _Against | None:
    device, strategy = plan.devices.device.value, plan.parallel.strategy.value
    if device != "cuda":
        return _Against(f"{device} has no CUDA graphs", "cuda_graph=auto")
    if plan.devices.ranks.value > 1 or not facts_of(strategy).takes_cuda_graphs:
        return _Against(
            f"strategy {strategy} on {plan.devices.ranks.value} ranks: graphs with exchange in "
            "them were not tried",
            "--gpus 1, or cuda_graph=auto",
        )
    if plan.parallel.offload.value is not None:
        return _Against("the host updates the weights", "cuda_graph=auto")
    if plan.numerics.determinism.value == "exact":
        return _Against("determinism = exact adds up slots one by one", "cuda_graph=auto")
    if plan.numerics.precision.value == "fp64":
        return _Against(
            "torch's fused optimizers read their rate from the device in fp32 only",
            "precision=fp32",
        )
    if has_momentum_warmup:
        return _Against("the momentum changes from step to step", "cuda_graph=auto")
    values = trace.activations_sampled or trace.activations_unknown
    if values is not None:
        return _Against(
            f"the loss asks the device for values, or could not be traced: {values}",
            "cuda_graph=auto",
            is_certain=False,
        )
    if trace.varying_shapes is not None:
        return _Against(
            f"micro-batches differ in shape: {trace.varying_shapes}",
            "cuda_graph=auto",
            is_certain=False,
        )
    return _against_memory(plan)


def _against_memory(plan: Plan) -> _Against | None:
    """A graph keeps the memory of its activations, and evaluation has some of its own besides: as
    much, to be safe."""
    parts = predict_parts(plan)
    if plan.devices.device_bytes is None or parts.activations is None:
        return None
    needed = parts.total + parts.activations
    room = room_for(plan.devices.device_bytes, plan.devices.ranks.value)
    if needed <= room:
        return None
    return _Against(
        f"a graph keeps the {format_bytes(parts.activations)} of its activations, and with as much "
        f"again for evaluation {format_bytes(needed)} are more than {format_bytes(int(room))}",
        "a smaller micro_batch_size, or cuda_graph=auto",
        is_certain=False,
    )


def _forced(
    name: str, settled: Decision[str], against: _Against | None, strategy: str, device: str
) -> tuple[Decision[str], list[Finding]]:
    if against is None:
        return settled, []
    finding = Finding(
        slug="rung-left-off",
        what=f"`{name}: on` is left off: {against.what}",
        why=f"{settled.reason}; strategy {strategy}, device {device}",
        fix=against.fix,
        severity="warning",
    )
    return Decision("off", f"{settled.reason}, but {against.what}"), [finding]


def choose_comparison(job: Job, trace: Trace, plan: Plan, cards: Sequence[Gpu]) -> Decision[bool]:
    """Whether the recipe as it is written runs once, to hold the fast path's gradients against:
    wherever that fits into the device."""
    rungs = [
        name for name in ("compile", "channels_last") if getattr(plan.execution, name).value == "on"
    ]
    if not rungs:
        return Decision(False, "nothing computes in another way; a CUDA graph compares itself")
    if plan.devices.device_bytes is not None:
        plain = job.model_copy(update={"compile": "off", "channels_last": "off"})
        footprint = make_footprint(
            plain,
            trace,
            plan.numerics.precision.value,
            plan.parallel.strategy.value,
            cards,
            plan.parallel.shard_ranks.value,
            plan.parallel.offload.value,
        )
        needed = footprint.parts(
            micro_batch=plan.micro_batches.largest_slot,
            samples=plan.micro_batches.largest_slot,
            is_checkpointed=plan.execution.activation_checkpointing.value,
            shards=plan.parallel.shard_ranks.value,
        ).total
        if needed > room_for(plan.devices.device_bytes, plan.devices.ranks.value):
            return Decision(
                False,
                f"as it is written the model would take {format_bytes(needed)} of "
                f"{format_bytes(plan.devices.device_bytes)}, and "
                f"{format_bytes(predict_parts(plan).total)} as planned",
            )
    return Decision(True, f"{', '.join(rungs)}: gradients of the first micro-batch, thrown away")


def without_each(plan: Plan, predict: Callable[[Plan], Forecast | None]) -> list[Alternative]:
    """The plan without one rung at a time; `time/compile_gain.py` has compiled code."""
    entries: list[Alternative] = []
    for name in ("channels_last", "cuda_graph"):
        if getattr(plan.execution, name).value == "off":
            continue
        off: dict[str, Any] = {name: Decision("off", "")}
        forecast = predict(plan.replace(**off))
        rate = forecast.samples_per_s if forecast is not None else None
        now = plan.predicted.samples_per_s.value
        why = f"{100 * (1 - rate / now):.0f} % slower" if rate and now else "slower"
        entries.append(
            Alternative(
                choice=f"{name}=off",
                samples_per_s=rate,
                memory_bytes=plan.predicted.memory_bytes.value,
                why_not=why,
            )
        )
    return entries
