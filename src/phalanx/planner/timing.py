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
from phalanx.planner.rates import Rates

# Shares of the peak, fitted on the fitted half of benchmarks/planner (H200).
_PRODUCT = 0.72  # a product that fills the device
_CONVOLUTION = 0.45  # as cuDNN runs them on channels-first tensors
_ATTENTION = {"forward": 0.45, "backward": 0.35}
_RECURRENCE = 0.25
_STREAM = 0.78  # of the memory's bandwidth
_UNALIGNED = 0.5  # half-precision rows that are no multiple of 16 bytes long
_TILE = 128  # rows and columns of the output that one processor computes at a time
_DEPTH = 128  # products of a shorter inner dimension spend their time on loading and storing


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
    if operator.kind == "view":
        return rates.host_view_s
    return rates.host_forward_s if operator.phase == "forward" else rates.host_backward_s


def _device_s(operator: Operator, samples: int, rates: Rates, precision: str) -> float:
    if operator.kind == "view":
        return 0.0
    moved = operator.bytes.at(samples) / (_STREAM * rates.gb_per_s * 1e9)
    if operator.kind == "memory":
        return max(rates.kernel_s, moved)
    peak = 1e12 * rates.tflops[_unit(operator.dtype, precision)]
    share = _share(operator, samples, rates)
    return max(rates.kernel_s, moved, operator.flops.at(samples) / (share * peak))


def _unit(dtype: str, precision: str) -> str:
    """The part of the device that computes it: fp32 products run on tensor cores under TF32."""
    if dtype == "fp32" and precision == "fp64":
        return "fp64"
    return "tf32" if dtype == "fp32" and precision in ("tf32", "bf16") else dtype


def _share(operator: Operator, samples: int, rates: Rates) -> float:
    if operator.kind == "attention":
        return _ATTENTION[operator.phase]
    if operator.kind == "recurrence":
        return _RECURRENCE
    if operator.shape is None:
        return _PRODUCT
    is_convolution = "conv" in operator.name
    share = _CONVOLUTION if is_convolution else _PRODUCT
    return share * _fill(operator, operator.shape, samples, rates)


def _fill(operator: Operator, shape: Shape, samples: int, rates: Rates) -> float:
    """How much of the device a product of this size keeps busy."""
    if rates.kind == "cpu":
        return 1.0
    batch, m, n, k = (line.at(samples) for line in shape)
    tiles = batch * ceil(m / _TILE) * ceil(n / _TILE)
    # Long inner dimensions are split over processors when there are few tiles.
    parts = max(1, min(k // (4 * _DEPTH), rates.processors // max(tiles, 1)))
    waves = ceil(tiles * parts / rates.processors)
    busy = min(1.0, tiles * parts / (waves * rates.processors))
    used = (m / (ceil(m / _TILE) * _TILE)) * (n / (ceil(n / _TILE) * _TILE))
    fill = busy * used * k / (k + _DEPTH)
    if operator.dtype == "half" and (n % 8 or k % 8):
        fill *= _UNALIGNED
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
    return passes * parameter_bytes / (_STREAM * rates.gb_per_s * 1e9)


def time_accumulation(gradient_bytes: int, rates: Rates) -> float:
    """Adding one more micro-batch's gradients: two read, one written."""
    return 3 * gradient_bytes / (_STREAM * rates.gb_per_s * 1e9)
