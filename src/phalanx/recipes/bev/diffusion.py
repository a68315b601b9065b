"""Noise on trajectories, and how it is taken off again in a few steps.

The schedule is a cosine (Nichol and Dhariwal 2021, "Improved Denoising Diffusion Probabilistic
Models"), the model predicts the clean trajectory, and sampling is DDIM's (Song et al. 2020), which
adds no noise: the same beginning gives the same plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

LEAST_NOISE = 0.02
"""The cleanest trajectory that a model is asked to clean."""


def signal_share(noise: Tensor) -> Tensor:
    """What of a trajectory is left where `noise`, from 0 to 1, says how noisy it is."""
    return torch.cos(noise * (math.pi / 2))


def noise_share(noise: Tensor) -> Tensor:
    """What of it is noise; both squared add up to 1."""
    return torch.sin(noise * (math.pi / 2))


def take_off(clean: Callable[[Tensor, Tensor], Tensor], beginning: Tensor, steps: int) -> Tensor:
    """From nothing but noise to a trajectory; `clean(noisy, noise)` is the model."""
    now = beginning
    levels = torch.linspace(1.0, 0.0, steps + 1, device=beginning.device)
    for index in range(steps):
        here, there = levels[index], levels[index + 1]
        found = clean(now, here.expand(now.shape[:2]))
        rest = (now - signal_share(here) * found) / noise_share(here)
        now = signal_share(there) * found + noise_share(there) * rest
    return now
