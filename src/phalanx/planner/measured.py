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
    device's factor changes with the logarithm of the size; the host does the same at every size.
    """
    device: dict[int, float] = {}
    host: list[float] = []
    sizes, caps = [], []
    for step in steps:
        seconds = step.step_s - step.data_s - step.communication_s
        on_device, on_host = predict(step.micro_batch, step.accumulation)
        if seconds <= 0 or on_device <= 0:
            continue
        sizes.append(step.micro_batch)
        if is_one:
            device[step.micro_batch] = seconds / (on_device + on_host)
            continue
        is_split = step.overhead_s > 0
        host_waits = step.overhead_s > _WAITED * step.step_s if is_split else on_host > on_device
        if is_split:
            device[step.micro_batch] = step.compute_s / on_device
        elif not host_waits:
            device[step.micro_batch] = seconds / on_device
        if host_waits:
            host.append(seconds / on_host)
        elif on_host > 0:
            caps.append(seconds / on_host)  # the host took this long at most
    if not sizes:
        return None
    of_device = _between(device, micro_batch) if device else 1.0
    of_host = median(host) if host else min([1.0, *caps])
    is_among = min(sizes) <= micro_batch <= max(sizes)
    spread = AMONG_SPREAD if is_among else BEYOND_SPREAD
    return Correction(of_device, of_device if is_one else of_host, spread)


def _between(factors: dict[int, float], micro_batch: int) -> float:
    """Between the nearest two sizes, or the nearest one's."""
    sizes = sorted(factors)
    for low, high in pairwise(sizes):
        if low <= micro_batch <= high:
            way = log(micro_batch / low) / log(high / low)
            return (1 - way) * factors[low] + way * factors[high]
    return factors[min(sizes, key=lambda size: abs(log(micro_batch / size)))]
