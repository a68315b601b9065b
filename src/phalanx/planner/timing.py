"""How long forward, backward and update take on one device: a roofline, operator by operator.

An operator takes as long as the slowest of three things: its arithmetic at the rate that products
of its size reach, its bytes at the memory's rate, and the least that any kernel takes. The host
starts operators ahead of the device, so a step takes the longer of the device's sum and the host's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

from phalanx.planner.operators import Operator, Shape
from phalanx.planner.rates import HOST_CALL_S, HOST_MODULE_S, HOST_VIEW_S, Rates

# Shares of the peak, from kernels of the fitted half of benchmarks/planner on an H200
# (benchmarks/planner/kernels.py; the arithmetic is in docs/concept/forecast.md).
_PRODUCT = 0.75  # a product that fills the device
_UNALIGNED = {1: 0.2, 2: 0.42, 4: 0.75}  # rows of half numbers, by the power of 2 in their length
_TILE = 128  # rows and columns of the output that one processor computes at a time
_DEPTH = 128  # products of a shorter inner dimension spend their time on loading and storing
# A convolution takes its arithmetic and then its bytes: tensors are turned around for cuDNN.
_CONVOLUTION = 0.47
_TURNED = 0.45
# One input channel for each output: plain arithmetic, a small part of it.
_DEPTHWISE = {"forward": 0.027, "input": 0.027, "weight": 0.0075}
_ATTENTION = {"forward": 0.26, "backward": 0.22}
_MASKED = {"forward": 0.125, "backward": 0.155}
_ATTENTION_TILE = 128
_RECURRENCE = 0.13
_RECURRENT_STEP_S = 7e-6  # steps follow one another, and each has this to wait for
_STREAM = {"memory": 0.8, "copy": 0.42, "reduction": 0.25}  # of the memory's bandwidth
_LAYER_NORM = 0.75  # of long rows; one of 600 numbers reaches half of it
_LAYER_NORM_HALF = 600
_GROUP_NORM = 0.43
_CHANNELS_PER_PROCESSOR = 9  # of BatchNorm, each in a block of its own, to use all the bandwidth
_UPDATE = 0.68
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
    operators: Iterable[Operator], micro_batch: int, rates: Rates, precision: str
) -> Compute:
    """Forward and backward of one micro-batch."""
    device = {"forward": 0.0, "backward": 0.0}
    host = 0.0
    for operator in operators:
        device[operator.phase] += operator.times * _device_s(
            operator, micro_batch, rates, precision
        )
        host += operator.times * _host_s(operator, rates)
    return Compute(device["forward"], device["backward"], host)


def _host_s(operator: Operator, rates: Rates) -> float:
    seconds = {"view": HOST_VIEW_S, **_MODULES}.get(operator.kind, HOST_CALL_S)
    return rates.host * seconds


def _device_s(operator: Operator, samples: int, rates: Rates, precision: str) -> float:
    kind = operator.kind
    if kind == "view":
        return 0.0
    bandwidth = rates.gb_per_s * 1e9
    size = operator.bytes.at(samples)
    if kind in _STREAM:
        return max(rates.kernel_s, size / (_STREAM[kind] * bandwidth))
    if kind == "norm":
        return max(rates.kernel_s, size / (_norm_share(operator, samples, rates) * bandwidth))
    computed = _computing_s(operator, samples, rates, precision)
    if _is_convolution(operator):
        return max(rates.kernel_s, computed + size / (_TURNED * bandwidth))
    return max(rates.kernel_s, computed, size / (_STREAM["memory"] * bandwidth))


def _computing_s(operator: Operator, samples: int, rates: Rates, precision: str) -> float:
    flops, share = float(operator.flops.at(samples)), 1.0
    unit = _unit(operator.dtype, precision)
    least = 0.0
    if operator.kind == "attention":
        flops, share = _attention(operator, samples)
    elif operator.kind == "recurrence":
        share = _RECURRENCE
        passes = 1 if operator.phase == "forward" else 2
        least = passes * _RECURRENT_STEP_S * _dimensions(operator, samples)[0]
    elif _is_depthwise(operator, samples):
        unit = "fp64" if unit == "fp64" else "fp32"
        share = _DEPTHWISE[operator.name.rpartition(" ")[2] if " " in operator.name else "forward"]
    elif operator.shape is not None:
        share = _CONVOLUTION if _is_convolution(operator) else _PRODUCT
        share *= _fill(operator, operator.shape, samples, rates)
    if rates.kind == "cpu":
        share, least = 1.0, 0.0
    return max(least, flops / (share * 1e12 * rates.tflops[unit]))


def _unit(dtype: str, precision: str) -> str:
    """The part of the device that computes it: fp32 products run on tensor cores under TF32."""
    if dtype == "fp32" and precision == "fp64":
        return "fp64"
    return "tf32" if dtype == "fp32" and precision in ("tf32", "bf16") else dtype


def _is_convolution(operator: Operator) -> bool:
    return operator.kind == "product" and "conv" in operator.name


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


def _attention(operator: Operator, samples: int) -> tuple[float, float]:
    """(flops in whole tiles, share of the peak); causal attention leaves half of the tiles out."""
    _, rows, columns, _ = _dimensions(operator, samples)
    whole = 1.0
    for length in (rows, columns):
        whole *= ceil(length / _ATTENTION_TILE) * _ATTENTION_TILE / length
    if "causal" in operator.name and rows == columns and rows > _ATTENTION_TILE:
        whole /= 2
    shares = _MASKED if "masked" in operator.name else _ATTENTION
    return whole * operator.flops.at(samples), shares[operator.phase]


def _norm_share(operator: Operator, samples: int, rates: Rates) -> float:
    _, rows, length, _ = _dimensions(operator, samples)
    if rates.kind == "cpu":
        return 1.0
    if "batch_norm" in operator.name:
        return min(_GROUP_NORM, rows / (_CHANNELS_PER_PROCESSOR * rates.processors))
    if "group_norm" in operator.name:
        return _GROUP_NORM
    return _LAYER_NORM * length / (length + _LAYER_NORM_HALF)


def _fill(operator: Operator, shape: Shape, samples: int, rates: Rates) -> float:
    """How much of the device a product of this size keeps busy."""
    batch, m, n, k = (line.at(samples) for line in shape)
    tiles = batch * ceil(m / _TILE) * ceil(n / _TILE)
    # Long inner dimensions are split over processors when there are few tiles.
    parts = max(1, min(k // (4 * _DEPTH), rates.processors // max(tiles, 1)))
    waves = ceil(tiles * parts / rates.processors)
    busy = min(1.0, tiles * parts / (waves * rates.processors))
    if _is_convolution(operator):
        return max(busy, 0.02)
    used = (m / (ceil(m / _TILE) * _TILE)) * (n / (ceil(n / _TILE) * _TILE))
    fill = busy * used * k / (k + _DEPTH)
    if operator.dtype == "half":
        # Samples are rows; what does not grow with them is how long rows are.
        lengths = [line.fixed for line in shape[1:] if line.per_sample == 0 and line.fixed > 1]
        fill *= min((_UNALIGNED.get(length & -length, 1.0) for length in lengths), default=1.0)
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
    return passes * parameter_bytes / (_UPDATE * rates.gb_per_s * 1e9)


def time_accumulation(gradient_bytes: int, rates: Rates) -> float:
    """Adding one more micro-batch's gradients: two read, one written."""
    return 3 * gradient_bytes / (_STREAM["memory"] * rates.gb_per_s * 1e9)
