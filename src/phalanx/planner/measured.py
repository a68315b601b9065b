"""What `bench` measured of a job: how far its steps were from what the rates alone say."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from math import log

from phalanx.machine.calibration import MeasuredStep

AMONG_SPREAD = 0.1
"""Relative half-width for a micro-batch between measured ones."""
BEYOND_SPREAD = 0.2
"""For one that is smaller or larger than all of them."""


def correction(
    steps: Iterable[MeasuredStep], micro_batch: int, predict: Callable[[int, int], float]
) -> tuple[float, float] | None:
    """(factor on predicted computing, spread) for a micro-batch, from measured ones.

    `predict` gives the computing of a step from its micro-batch and accumulation. Between two
    measured sizes the factor changes with the logarithm of the size; None without any.
    """
    factors = {}
    for step in steps:
        computing = step.step_s - step.data_s - step.communication_s
        predicted = predict(step.micro_batch, step.accumulation)
        if computing > 0 and predicted > 0:
            factors[step.micro_batch] = computing / predicted
    if not factors:
        return None
    sizes = sorted(factors)
    for low, high in pairwise(sizes):
        if low <= micro_batch <= high:
            way = log(micro_batch / low) / log(high / low)
            return (1 - way) * factors[low] + way * factors[high], AMONG_SPREAD
    nearest = min(sizes, key=lambda size: abs(log(micro_batch / size)))
    return factors[nearest], AMONG_SPREAD if nearest == micro_batch else BEYOND_SPREAD
