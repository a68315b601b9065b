"""How long forward, backward and update take on one device: a roofline, operator by operator.

An operator takes as long as the slowest of three things: its arithmetic at the rate that products
of its size reach, its bytes at the memory's rate, and the least that any kernel takes. The host
starts operators ahead of the device, so a step takes the longer of the device's sum and the host's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

from phalanx.planner.schema.footprint import Line
from phalanx.planner.schema.operators import Operator, Shape
from phalanx.planner.time.rates import HOST_CALL_S, HOST_MODULE_S, HOST_VIEW_S, Rates

# Shares of the peak, from kernels of the fitted half of benchmarks/planner on an H200
# (benchmarks/planner/kernels.py).
_PRODUCT = 0.75  # a product that fills the device
_UNALIGNED = {1: 0.2, 2: 0.42, 4: 0.75}  # rows of half numbers, by the power of 2 in their length
_TILE = 128  # rows and columns of the output that one processor computes at a time
_DEPTH = 128  # products of a shorter inner dimension spend their time on loading and storing
_CONVOLUTION = 0.47
# One input channel for each output: plain arithmetic, a small part of it.
_DEPTHWISE = {"forward": 0.027, "input": 0.027, "weight": 0.0075}
_ATTENTION = {"forward": 0.26, "backward": 0.22}
_MASKED = {"forward": 0.125, "backward": 0.155}
_ATTENTION_TILE = {"half": (128, 128), "fp32": (64, 128)}
# Exact fp32 leaves the tensor cores alone: smaller tiles, and more of a peak that is smaller.
_EXACT_PRODUCT = 0.83
_EXACT_TILE = 64
_EXACT_ATTENTION = {"forward": 0.45, "backward": 0.38}
_RECURRENT_STEP_S = 7e-6  # steps follow one another, and each has this to wait for
# Cards before Hopper reach more of their smaller peak: end to end 41 to 68 % on an A100, 33 to 46
# on an H100 (MPT, Megatron, fms-fsdp, torchtitan); large products 87 and 80 % (ml-engineering). Not
# measured here, nor is what unaligned rows cost without Hopper's copies, which need 16 bytes.
_BEFORE_HOPPER = 1.35
_PRODUCT_BEFORE_HOPPER = 0.8
_UNALIGNED_BEFORE_HOPPER = {1: 0.4, 2: 0.65, 4: 0.85}
# What kernels of one kind move at most, GB/s for each processor: 132 of them share 4.8 TB/s, which
# few kernels reach. Where memory is slower, it is the limit.
_STREAM = {"memory": 29.0, "copy": 15.2, "reduction": 9.1}
_TURNED = 16.4  # tensors turned around for a convolution, which comes after
_LAYER_NORM = 27.0  # of long rows; one of 600 numbers reaches half of it
_LAYER_NORM_HALF = 600
_GROUP_NORM = 15.6
_CHANNEL_GB_PER_S = 4.0  # BatchNorm: a channel is one block of threads
# With channels last BatchNorm and depthwise convolutions have kernels of their own; GroupNorm has
# none, and turns what it reads and writes around (torch 2.11).
_BATCH_NORM_LAST = {"forward": 9.0, "backward": 17.5}
_DEPTHWISE_LAST = {"forward": 17.0, "input": 7.4, "weight": 13.5}
_GROUP_NORM_TURNED = 1.6  # times its bytes, copied
_UPDATE = 24.7
_BANDWIDTH = 0.85  # of the memory's own, at most
_MODULES = dict.fromkeys(("product", "attention", "recurrence", "norm"), HOST_MODULE_S)


@dataclass(frozen=True)
class Compute:
    """Seconds of one micro-batch."""

    forward_s: float
    backward_s: float
    host_s: float

    @property
    def device_s(self) -> float:
        return self.forward_s + self.backward_s


def time_operators(
    operators: Iterable[Operator],
    micro_batch: int,
    rates: Rates,
    precision: str,
    *,
    is_turned: bool = True,
) -> Compute:
    """Forward and backward of one micro-batch; `is_turned`: convolutions turn their tensors
    around, whose channels are not last."""
    device = {"forward": 0.0, "backward": 0.0}
    host = 0.0
    for operator in operators:
        device[operator.phase] += operator.times * _device_s(
            operator, micro_batch, rates, precision, is_turned
        )
        host += operator.times * _host_s(operator, rates)
    return Compute(device["forward"], device["backward"], host)


def _host_s(operator: Operator, rates: Rates) -> float:
    seconds = {"view": HOST_VIEW_S, **_MODULES}.get(operator.kind, HOST_CALL_S)
    if operator.kind == "recurrence" and operator.shape is not None and rates.kind != "cpu":
        # cuDNN starts a kernel for each step, backward two.
        seconds += (
            (1 if operator.phase == "forward" else 2) * operator.shape.batch.fixed * HOST_CALL_S
        )
    return rates.host * seconds


def _device_s(
    operator: Operator, samples: int, rates: Rates, precision: str, is_turned: bool
) -> float:
    kind = operator.kind
    if kind == "view":
        return 0.0
    size = operator.bytes.at(samples)
    if kind in _STREAM:
        return max(rates.kernel_s, _moving_s(size, _STREAM[kind], rates))
    if kind == "norm":
        seconds = size / _norm_rate(operator, samples, rates, is_turned)
        if "group_norm" in operator.name and not is_turned:
            seconds += _moving_s(_GROUP_NORM_TURNED * size, _STREAM["copy"], rates)
        return max(rates.kernel_s, seconds)
    if not is_turned and rates.kind == "cuda" and _is_depthwise(operator, samples):
        return max(rates.kernel_s, _moving_s(size, _DEPTHWISE_LAST[_pass_of(operator)], rates))
    computed = _computing_s(operator, samples, rates, precision)
    if _is_convolution(operator) and is_turned:
        return max(rates.kernel_s, computed + _moving_s(size, _TURNED, rates))
    return max(rates.kernel_s, computed, _moving_s(size, _STREAM["memory"], rates))


def _moving_s(size: float, per_processor: float, rates: Rates) -> float:
    return size / _rate(per_processor, rates)


def _rate(per_processor: float, rates: Rates) -> float:
    """Bytes per second of a kernel that moves so many GB/s on each processor."""
    if rates.kind != "cuda":
        return rates.gb_per_s * 1e9
    return min(per_processor * rates.processors, _BANDWIDTH * rates.gb_per_s) * 1e9


def _computing_s(operator: Operator, samples: int, rates: Rates, precision: str) -> float:
    flops, share = float(operator.flops.at(samples)), 1.0
    unit = _unit(operator.dtype, precision)
    if operator.kind == "attention":
        flops, share = _attention(operator, samples, unit)
        share *= 1.0 if rates.is_hopper or unit == "fp32" else _BEFORE_HOPPER
    elif operator.kind == "recurrence":
        return _recurring_s(operator, samples, rates, precision)
    elif _is_depthwise(operator, samples):
        unit = "fp64" if unit == "fp64" else "fp32"
        share = _DEPTHWISE[_pass_of(operator)]
    elif operator.shape is not None:
        share = _product_share(operator, rates, unit)
        share *= _fill(operator, operator.shape, samples, rates, unit)
    if rates.kind == "cpu":
        share = 1.0
    return flops / (share * 1e12 * rates.tflops[unit])


def _recurring_s(operator: Operator, samples: int, rates: Rates, precision: str) -> float:
    """Half of the work is one product with the inputs of all steps; the other half is a small one
    with the state in each step, and steps wait for one another."""
    unit = _unit(operator.dtype, precision)
    peak = 1e12 * rates.tflops[unit]
    flops = operator.flops.at(samples)
    if rates.kind == "cpu" or operator.shape is None:
        return flops / peak
    share = _product_share(operator, rates, unit)
    once = flops / 2 / (share * peak)
    steps, *of_one = operator.shape
    fill = _fill(operator, Shape(Line(1, 0), *of_one), samples, rates, unit)
    each = flops / 2 / (share * fill * peak)
    passes = 1 if operator.phase == "forward" else 2
    return once + max(each, passes * _RECURRENT_STEP_S * steps.at(samples))


def _product_share(operator: Operator, rates: Rates, unit: str) -> float:
    """Of the peak, when it fills the device."""
    if _is_convolution(operator):
        return _CONVOLUTION * (1.0 if rates.is_hopper else _BEFORE_HOPPER)
    if unit == "fp32":
        return _EXACT_PRODUCT
    return _PRODUCT if rates.is_hopper else _PRODUCT_BEFORE_HOPPER


def _unit(dtype: str, precision: str) -> str:
    """The part of the device that computes it: fp32 products run on tensor cores under TF32."""
    if dtype == "fp32" and precision == "fp64":
        return "fp64"
    return "tf32" if dtype == "fp32" and precision in ("tf32", "bf16", "fp16") else dtype


def _is_convolution(operator: Operator) -> bool:
    return operator.kind == "product" and "conv" in operator.name


def _pass_of(operator: Operator) -> str:
    """`forward`, `input` or `weight` of a convolution."""
    return operator.name.rpartition(" ")[2] if " " in operator.name else "forward"


def _is_depthwise(operator: Operator, samples: int) -> bool:
    if not _is_convolution(operator) or operator.shape is None:
        return False
    groups, m, n, _ = _dimensions(operator, samples)
    return groups > 1 and min(m, n) == 1


def _dimensions(operator: Operator, samples: int) -> tuple[int, int, int, int]:
    if operator.shape is None:
        return 1, 1, 1, 1
    batch, m, n, k = (line.at(samples) for line in operator.shape)
    return batch, m, n, k


def _attention(operator: Operator, samples: int, unit: str) -> tuple[float, float]:
    """(flops in whole tiles, share of the peak); causal attention leaves half of the tiles out."""
    _, rows, columns, _ = _dimensions(operator, samples)
    whole = 1.0
    tiles = _ATTENTION_TILE["fp32" if unit == "fp32" else "half"]
    for length, tile in zip((rows, columns), tiles, strict=True):
        whole *= ceil(length / tile) * tile / length
    if "causal" in operator.name and rows == columns and rows > tiles[1]:
        whole /= 2
    if unit == "fp32":
        return whole * operator.flops.at(samples), _EXACT_ATTENTION[operator.phase]
    shares = _MASKED if "masked" in operator.name else _ATTENTION
    return whole * operator.flops.at(samples), shares[operator.phase]


def _norm_rate(operator: Operator, samples: int, rates: Rates, is_turned: bool) -> float:
    """Bytes per second of a norm over so many rows of such a length."""
    _, rows, length, _ = _dimensions(operator, samples)
    if "batch_norm" in operator.name and not is_turned:
        return _rate(_BATCH_NORM_LAST[operator.phase], rates)
    if "batch_norm" in operator.name:
        return min(_rate(_GROUP_NORM, rates), rows * _CHANNEL_GB_PER_S * 1e9)
    if "group_norm" in operator.name:
        return _rate(_GROUP_NORM, rates)
    return _rate(_LAYER_NORM * length / (length + _LAYER_NORM_HALF), rates)


def _fill(operator: Operator, shape: Shape, samples: int, rates: Rates, unit: str) -> float:
    """How much of the device a product of this size keeps busy."""
    batch, m, n, k = (line.at(samples) for line in shape)
    tile = _EXACT_TILE if unit == "fp32" else _TILE
    tiles = batch * ceil(m / tile) * ceil(n / tile)
    # Long inner dimensions are split over processors when there are few tiles.
    parts = max(1, min(k // (4 * _DEPTH), rates.processors // max(tiles, 1)))
    waves = ceil(tiles * parts / rates.processors)
    busy = min(1.0, tiles * parts / (waves * rates.processors))
    if _is_convolution(operator):
        return max(busy, 0.02)
    used = (m / (ceil(m / tile) * tile)) * (n / (ceil(n / tile) * tile))
    fill = busy * used
    if unit != "fp32":
        fill *= k / (k + _DEPTH)
    if operator.dtype == "half" and not rates.pads:
        # Samples are rows; what does not grow with them is how long rows are.
        lengths = [line.fixed for line in shape[1:] if line.per_sample == 0 and line.fixed > 1]
        costs = _UNALIGNED if rates.is_hopper else _UNALIGNED_BEFORE_HOPPER
        fill *= min((costs.get(length & -length, 1.0) for length in lengths), default=1.0)
    return max(fill, 1e-3)


def time_update(
    parameter_bytes: int,
    *,
    state_copies: int,
    has_clip: bool,
    has_average: bool,
    is_scaled: bool,
    rates: Rates,
) -> float:
    """The optimizer's step over the trainable weights of one rank, in fp32: every tensor is read,
    and all but the gradient written; one fused kernel."""
    passes = 3.0 + 2 * state_copies  # weight read and written, gradient read, state both
    passes += 3 if has_clip else 0  # the norm reads gradients; scaling reads and writes them
    passes += 3 if has_average else 0
    passes += 2 if is_scaled else 0  # fp16: unscaled in place
    return _moving_s(passes * parameter_bytes, _UPDATE, rates)


def time_accumulation(gradient_bytes: int, rates: Rates) -> float:
    """Adding one more micro-batch's gradients: two read, one written."""
    return _moving_s(3 * gradient_bytes, _STREAM["memory"], rates)
