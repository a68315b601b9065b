"""The policy's network: a transformer over noisy actions, with the state and the task in front of
them, time and both of them in every layer's scales, and pictures by cross-attention.

Statistics and descriptions are buffers: they lie in every checkpoint, and whoever has the weights
has them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.recipes.policy.diffusion import noised, sample, target
from phalanx.recipes.policy.options import PolicyOptions, Size
from phalanx.recipes.policy.scaling import Statistics

_FREQUENCIES = 32
_TIME_SCALE = 1000.0  # times from 0 to 1 as the steps that sinusoids were made for
_FARTHEST = 5.0  # standard deviations: a state that was never seen is no further out


class Scales(nn.Module):
    """Each task's mean and deviation of states and actions."""

    state_mean: Tensor
    state_std: Tensor
    action_mean: Tensor
    action_std: Tensor

    def __init__(self, statistics: Statistics) -> None:
        super().__init__()
        for name, rows in statistics._asdict().items():
            # A list, so that the default device is heeded: planning builds models without memory.
            self.register_buffer(name, torch.tensor(rows.tolist(), dtype=torch.float32))

    def state(self, raw: Tensor, task: Tensor) -> Tensor:
        scaled = (raw - self.state_mean[task]) / self.state_std[task]
        return scaled.clamp(-_FARTHEST, _FARTHEST)

    def actions(self, raw: Tensor, task: Tensor) -> Tensor:
        return (raw - self.action_mean[task][:, None]) / self.action_std[task][:, None]

    def raw_actions(self, scaled: Tensor, task: Tensor) -> Tensor:
        return scaled * self.action_std[task][:, None] + self.action_mean[task][:, None]


class Attention(nn.Module):
    """Of a sequence to itself, or to what was seen."""

    def __init__(self, shape: Size, *, is_cross: bool) -> None:
        super().__init__()
        self.heads = shape.heads
        self.is_cross = is_cross
        if is_cross:
            self.query = nn.Linear(shape.width, shape.width)
            self.key_value = nn.Linear(shape.width, 2 * shape.width)
        else:
            self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.out = nn.Linear(shape.width, shape.width)

    def forward(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
        if seen is not None:
            query = self._split(self.query(x), 1)[0]
            key, value = self._split(self.key_value(seen), 2)
        else:
            query, key, value = self._split(self.qkv(x), 3)
        mixed = F.scaled_dot_product_attention(query, key, value)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out

    def _split(self, x: Tensor, parts: int) -> Tensor:
        batch, length, _ = x.shape
        return x.view(batch, length, parts, self.heads, -1).permute(2, 0, 3, 1, 4)


class Block(nn.Module):
    """Attention and a feed-forward network, shifted, scaled and gated by what is the same for the
    whole sequence (adaLN-single: Chen et al., "PixArt-alpha", 2023)."""

    def __init__(self, shape: Size, *, sees: bool) -> None:
        super().__init__()
        width = shape.width
        self.table = nn.Parameter(torch.zeros(6, width))
        self.attention = Attention(shape, is_cross=False)
        self.seeing = Attention(shape, is_cross=True) if sees else None
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        self.width = width

    def forward(self, x: Tensor, scales: Tensor, seen: Tensor | None = None) -> Tensor:
        shift, scale, gate, shift2, scale2, gate2 = (scales + self.table).unsqueeze(2).unbind(1)
        normed = F.layer_norm(x, (self.width,))
        x = x + (1 + gate) * self.attention(normed * (1 + scale) + shift)
        if self.seeing is not None and seen is not None:
            x = x + self.seeing(F.layer_norm(x, (self.width,)), seen)
        normed = F.layer_norm(x, (self.width,)) * (1 + scale2) + shift2
        wide = F.gelu(self.wide(normed), approximate="tanh")
        out: Tensor = x + (1 + gate2) * self.narrow(wide)
        return out


class PolicyNetwork(nn.Module):
    """From noisy actions, their time and what is known to a prediction for each action."""

    texts: Tensor

    def __init__(
        self,
        options: PolicyOptions,
        statistics: Statistics,
        texts: Any,
        vision: nn.Module | None,
    ) -> None:
        super().__init__()
        seen_size = options.seen_size
        shape, width = options.shape, options.shape.width
        state_size, action_size = statistics.state_mean.shape[1], statistics.action_mean.shape[1]
        num_tasks = len(statistics.state_mean)
        self.scales = Scales(statistics)
        self.per_token = math.gcd(shape.per_token, options.chunk)
        num_tokens = options.chunk // self.per_token
        self.action_in = nn.Linear(self.per_token * action_size, width)
        self.state_in = nn.Sequential(
            nn.Linear(state_size, width), nn.SiLU(), nn.Linear(width, width)
        )
        if texts is None:
            self.task_in: nn.Module = nn.Embedding(num_tasks, width)
        else:
            self.register_buffer("texts", torch.tensor(texts.tolist(), dtype=torch.float32))
            self.task_in = nn.Linear(texts.shape[1], width)
        self.has_texts = texts is not None
        self.vision = vision
        if seen_size:
            self.seen_in = nn.Linear(seen_size, width)
            self.camera = nn.Parameter(torch.randn(len(options.cameras), 1, width) * 0.02)
        self.time_in = nn.Sequential(
            nn.Linear(2 * _FREQUENCIES, width), nn.SiLU(), nn.Linear(width, width)
        )
        self.scales_of = nn.Linear(width, 6 * width)
        nn.init.zeros_(self.scales_of.weight)
        nn.init.zeros_(self.scales_of.bias)
        self.place = nn.Parameter(torch.randn(num_tokens + 2, width) * 0.02)
        self.blocks = nn.ModuleList(Block(shape, sees=bool(seen_size)) for _ in range(shape.depth))
        self.action_out = nn.Linear(width, self.per_token * action_size)
        nn.init.zeros_(self.action_out.weight)
        nn.init.zeros_(self.action_out.bias)
        self.width = width
        self.options = options

    def forward(
        self,
        batch: Mapping[str, Tensor],
        noise: Tensor,
        time: Tensor | None = None,
        shaken: Tensor | None = None,
    ) -> Any:
        """With a time for each sample: what is said of the batch's actions under that noise, and
        what should be. Without: actions, in the robot's own units, made of the noise. All of it is
        one forward, because a strategy may have wrapped the model."""
        task = batch["task"]
        state = self.scales.state(batch["state"], task)
        noise = noise.to(state.dtype)  # drawn in fp32; the model may be in fp64
        if shaken is not None:
            state = state + shaken.to(state.dtype)
        seen = self._look(batch)
        if time is None:
            made = sample(
                lambda x, now: self.denoise(x, now, state, task, seen),
                noise,
                prediction=self.options.prediction,
                solver=self.options.solver,
                steps=self.options.sampling_steps,
            )
            return self.scales.raw_actions(made, task)
        time = time.to(state.dtype)
        actions = self.scales.actions(batch["actions"], task)
        said = self.denoise(noised(actions, noise, time), time, state, task, seen)
        return said.to(state.dtype), target(actions, noise, time, self.options.prediction)

    def denoise(
        self, actions: Tensor, time: Tensor, state: Tensor, task: Tensor, seen: Tensor | None
    ) -> Tensor:
        """What the network says of noisy actions; they and the state are scaled."""
        state = self.state_in(state)
        about = self.task_in(self.texts[task] if self.has_texts else task)
        everywhere = self.time_in(_waves(time)) + state + about
        scales = self.scales_of(F.silu(everywhere)).unflatten(1, (6, self.width))
        tokens = self.action_in(actions.reshape(len(actions), -1, self.action_in.in_features))
        x = torch.cat([state[:, None], about[:, None], tokens], 1) + self.place
        for block in self.blocks:
            x = block(x, scales, seen)
        out: Tensor = self.action_out(F.layer_norm(x, (self.width,))[:, 2:])
        return out.reshape(actions.shape)

    def _look(self, batch: Mapping[str, Tensor]) -> Tensor | None:
        """Pictures (`images`: B x cameras x 3 x H x W, bytes) or what a frozen model saw of them
        (`seen`: B x cameras x tokens x features) as tokens for cross-attention."""
        if "images" in batch and self.vision is not None:
            images = batch["images"]
            features = self.vision(images.flatten(0, 1)).unflatten(0, images.shape[:2])
        elif "seen" in batch:
            features = batch["seen"].float()
        else:
            return None
        tokens: Tensor = self.seen_in(features) + self.camera
        return tokens.flatten(1, 2)


def _waves(time: Tensor) -> Tensor:
    exponents = torch.arange(_FREQUENCIES, device=time.device) / _FREQUENCIES
    angles = time[:, None] * _TIME_SCALE * torch.exp(-math.log(1e4) * exponents)
    return torch.cat([angles.sin(), angles.cos()], 1)
