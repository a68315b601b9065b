"""What `bench` measured of a job: how far its steps were from what the rates alone say."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from math import log
from statistics import median
from typing import NamedTuple

from phalanx.machine.calibration import MeasuredStep

AMONG_SPREAD = 0.15
"""Relative half-width for a micro-batch between measured ones: four of five points of
benchmarks/planner lie within it."""
BEYOND_SPREAD = 0.25
"""For one that is smaller or larger than all of them."""
_WAITED = 0.1  # of a step that the device had nothing to do: the host was the slower one


class Correction(NamedTuple):
    """Factors on what is predicted, and the spread that is left."""

    device: float
    host: float
    spread: float


def correction(
    steps: Iterable[MeasuredStep],
    micro_batch: int,
    predict: Callable[[int, int], tuple[float, float]],
    *,
    is_one: bool = False,
) -> Correction | None:
    """What measured steps say about a micro-batch; None without any.

    `predict` gives device and host seconds of a step from its micro-batch and accumulation; they
    add up where both are one processor (`is_one`), otherwise the longer one is the step. The
    device's seconds lie on the line through the nearest two sizes; the host does the same at every
    size.
    """
    device: dict[int, _Seconds] = {}
    host: list[float] = []
    sizes, caps = [], []
    for step in steps:
        seconds = step.step_s - step.data_s - step.communication_s
        on_device, on_host = predict(step.micro_batch, step.accumulation)
        if seconds <= 0 or on_device <= 0:
            continue
        sizes.append(step.micro_batch)
        if is_one:
            device[step.micro_batch] = _Seconds(seconds, on_device + on_host, step.accumulation)
            continue
        is_split = step.overhead_s > 0
        host_waits = step.overhead_s > _WAITED * step.step_s if is_split else on_host > on_device
        if is_split:
            device[step.micro_batch] = _Seconds(step.compute_s, on_device, step.accumulation)
        elif not host_waits:
            device[step.micro_batch] = _Seconds(seconds, on_device, step.accumulation)
        if host_waits:
            host.append(seconds / on_host)
        elif on_host > 0:
            caps.append(seconds / on_host)  # the host took this long at most
    if not sizes:
        return None
    of_device = 1.0
    if device:
        once = predict(micro_batch, 1)
        of_device = _on_line(device, micro_batch, sum(once) if is_one else once[0])
    of_host = median(host) if host else min([1.0, *caps])
    is_among = min(sizes) <= micro_batch <= max(sizes)
    spread = AMONG_SPREAD if is_among else BEYOND_SPREAD
    return Correction(of_device, of_device if is_one else of_host, spread)


class _Seconds(NamedTuple):
    """Of a step on the device."""

    measured: float
    predicted: float
    accumulation: int

    @property
    def factor(self) -> float:
        return self.measured / self.predicted


def _on_line(known: dict[int, _Seconds], micro_batch: int, predicted: float) -> float:
    """The factor on what is predicted of one micro-batch. A step has a part that does not grow with
    its samples, of which the prediction knows little: it is found by the line through two sizes,
    better than by factors (benchmarks/planner, fitted half: 6.7 instead of 8.4 % off)."""
    if micro_batch in known:
        return known[micro_batch].factor
    sizes = sorted(known)
    nearest = known[min(sizes, key=lambda size: abs(log(micro_batch / size)))]
    if len(sizes) == 1:
        return nearest.factor
    low, high = next((p for p in pairwise(sizes) if micro_batch < p[1]), (sizes[-2], sizes[-1]))
    ends = [known[size].measured / known[size].accumulation for size in (low, high)]
    seconds = ends[0] + (ends[1] - ends[0]) * (micro_batch - low) / (high - low)
    # Nothing takes less than if all of it grew with the samples.
    least = nearest.factor if micro_batch < sizes[0] else 0.0
    return max(seconds / predicted, least)
