"""Diffusion over action chunks: noise goes on as a cosine of continuous time, and comes off in a
few calls of the network.

x_t = alpha(t) x + sigma(t) noise,   alpha = cos(t pi/2), sigma = sin(t pi/2),   t from 0 to 1
v-prediction (Salimans, Ho 2022): v = alpha noise - sigma x, so x = alpha x_t - sigma v
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

_NEAR_ONE = 0.999  # all noise: alpha is 0.0016, and its logarithm still finite
_FARTHEST = 6.0  # standard deviations that a sampled action may lie out

Predict = Callable[[Tensor, Tensor], Tensor]
"""What the network says of noisy actions at a time, one per sample."""


def alpha_sigma(time: Tensor) -> tuple[Tensor, Tensor]:
    """How much of the actions and of the noise is in x_t, shaped for chunks."""
    angle = time[:, None, None] * (math.pi / 2)
    return angle.cos(), angle.sin()


def noised(actions: Tensor, noise: Tensor, time: Tensor) -> Tensor:
    """x_t."""
    alpha, sigma = alpha_sigma(time)
    return alpha * actions + sigma * noise


def target(actions: Tensor, noise: Tensor, time: Tensor, prediction: str) -> Tensor:
    """What the network should say."""
    if prediction == "epsilon":
        return noise
    alpha, sigma = alpha_sigma(time)
    return alpha * noise - sigma * actions


def sample(predict: Predict, noise: Tensor, *, prediction: str, solver: str, steps: int) -> Tensor:
    """Actions from noise by DDIM (Song et al. 2021) or DPM-Solver++(2M) (Lu et al. 2022)."""
    x, before, step_before = noise, None, 0.0
    for now, later in pairwise(_times(steps)):
        found = _actions(predict, x, now, prediction)
        if later == 0.0:
            return found
        (alpha, sigma), (next_alpha, next_sigma) = _levels(now), _levels(later)
        step = _snr(later) - _snr(now)
        aim = found
        if solver == "dpm" and before is not None:
            ratio = step / (2 * step_before)
            aim = found + ratio * (found - before)
        # With the newest estimate alone, DPM-Solver++ and DDIM are the same step.
        x = (next_sigma / sigma) * x + (next_alpha - alpha * next_sigma / sigma) * aim
        before, step_before = found, step
    raise AssertionError("the last time is 0")


def _times(steps: int) -> list[float]:
    return [min(_NEAR_ONE, 1 - index / steps) for index in range(steps)] + [0.0]


def _levels(time: float) -> tuple[float, float]:
    return math.cos(time * math.pi / 2), math.sin(time * math.pi / 2)


def _snr(time: float) -> float:
    alpha, sigma = _levels(time)
    return math.log(alpha / sigma)


def _actions(predict: Predict, x: Tensor, time: float, prediction: str) -> Tensor:
    said = predict(x, torch.full((len(x),), time, device=x.device, dtype=x.dtype)).to(x.dtype)
    alpha, sigma = _levels(time)
    found = (x - sigma * said) / alpha if prediction == "epsilon" else alpha * x - sigma * said
    return found.clamp(-_FARTHEST, _FARTHEST)
