"""The planner: a mixture of transformers that takes noise off a trajectory.

Three kinds of tokens (patches of the grid; speed, command and route; waypoints), each with weights
of its own for everything but attention, which they share (Liang et al. 2024, "Mixture-of-
Transformers"). What is seen does not attend to waypoints: it goes through once for any number of
trajectories and any number of steps of sampling.

What the model learns is the way beside constant velocity, in units of its spread over the data;
the spread is in buffers, which travel with the weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.recipe import keys
from phalanx.recipes.bev.diffusion import noise_share, signal_share, take_off

SEEN = ("bev", "speed", "command", "route")
"""What of a batch a planner is given, in this order."""
PATCH = 4
"""Cells of a side of the first patches; pairs of them become tokens."""
_HEAD_WIDTH = 32
_WAVES = 32
_NARROWEST, _WIDEST = -5.0, 3.0  # logarithms of deviations
_SPEED, _FAR = 10.0, 20.0  # what speeds and distances are divided by, to be about 1


class Shape(NamedTuple):
    """What a planner is given and gives."""

    channels: int
    cells: tuple[int, int]
    commands: int
    route_points: int
    waypoints: int
    waypoint_s: float
    scale: Sequence[tuple[float, float]]
    """For each channel what is taken off, and what the rest is divided by."""


class Predicted(NamedTuple):
    """Clean trajectories, in the model's units: samples x draws x waypoints x 2."""

    clean: Tensor
    deviation: Tensor
    """Logarithm of the standard deviation of each."""


class Kind(nn.Module):
    """One kind of tokens in one layer: its norms, projections and feed-forward."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.head_width = math.gcd(width, _HEAD_WIDTH)
        self.before = nn.LayerNorm(width)
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.between = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def look(self, tokens: Tensor, shift: Tensor | None = None) -> tuple[Tensor, ...]:
        """Queries, keys and values by heads."""
        seen = self.before(tokens)
        if shift is not None:
            seen = seen * (1 + shift[..., 0, :]) + shift[..., 1, :]
        heads = self.project(seen).unflatten(-1, (3, -1, self.head_width))
        return tuple(heads.permute(2, 0, 3, 1, 4).unbind(0))

    def think(self, tokens: Tensor, attended: Tensor, shift: Tensor | None = None) -> Tensor:
        """The tokens after what they attended to."""
        tokens = tokens + self.out(attended.transpose(1, 2).flatten(2))
        seen = self.between(tokens)
        if shift is not None:
            seen = seen * (1 + shift[..., 2, :]) + shift[..., 3, :]
        thought: Tensor = tokens + self.narrow(F.gelu(self.widen(seen)))
        return thought


class Seeing(nn.Module):
    """A layer of grid and state beside each other."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.grid, self.state = Kind(width), Kind(width)

    def forward(self, grid: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Grid and state after this layer, and the keys and values that waypoints attend to."""
        parts = zip(self.grid.look(grid), self.state.look(state), strict=True)
        query, key, value = (torch.cat(both, 2) for both in parts)
        attended = F.scaled_dot_product_attention(query, key, value)
        patches = grid.shape[1]
        grid = self.grid.think(grid, attended[:, :, :patches])
        state = self.state.think(state, attended[:, :, patches:])
        return grid, state, key, value


class Planning(nn.Module):
    """A layer of waypoints, which attend to each other and to what is seen."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.plan = Kind(width)
        self.shift = nn.Linear(width, 4 * width)
        nn.init.zeros_(self.shift.weight)
        nn.init.zeros_(self.shift.bias)

    def forward(self, plan: Tensor, noise: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Waypoints after this layer; `noise` says how noisy they are."""
        shift = self.shift(noise).unflatten(-1, (4, -1))[:, None]
        query, own_key, own_value = self.plan.look(plan, shift)
        attended = F.scaled_dot_product_attention(
            query, torch.cat([key, own_key], 2), torch.cat([value, own_value], 2)
        )
        return self.plan.think(plan, attended, shift)


class Planner(nn.Module):
    """From a grid, a speed, a command and a route to waypoints and their uncertainty."""

    waypoint_times: Tensor
    centre: Tensor
    spread: Tensor
    grid_offset: Tensor
    grid_scale: Tensor

    def __init__(self, shape: Shape, *, width: int, depth: int, steps: int, ways: int) -> None:
        """A plan is one of `ways`, each made in `steps`."""
        super().__init__()
        self.steps = steps
        self.stem = nn.Sequential(
            nn.Conv2d(shape.channels, width, PATCH, stride=PATCH),
            nn.GELU(),
            nn.Conv2d(width, width, 3, stride=2, padding=1),
        )
        patches = math.prod(math.ceil(side // PATCH / 2) for side in shape.cells)
        self.places = nn.Parameter(torch.randn(patches, width) * 0.02)
        self.speed = nn.Sequential(nn.Linear(1, width), nn.GELU(), nn.Linear(width, width))
        self.command = nn.Embedding(shape.commands, width)
        self.route = nn.Sequential(
            nn.Linear(2 * shape.route_points, width), nn.GELU(), nn.Linear(width, width)
        )
        self.noise = nn.Sequential(
            nn.Linear(2 * _WAVES, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()
        )
        self.take_in = nn.Linear(2, width)
        self.order = nn.Parameter(torch.randn(shape.waypoints, width) * 0.02)
        self.seeing = nn.ModuleList(Seeing(width) for _ in range(depth))
        self.planning = nn.ModuleList(Planning(width) for _ in range(depth))
        self.last = nn.LayerNorm(width)
        self.put_out = nn.Linear(width, 4)
        nn.init.zeros_(self.put_out.weight)
        nn.init.zeros_(self.put_out.bias)
        times = shape.waypoint_s * torch.arange(1, shape.waypoints + 1, dtype=torch.float32)
        offsets, scales = torch.tensor(shape.scale, dtype=torch.float32).T
        self.register_buffer("waypoint_times", times)
        drawn = keys.normal(np.arange(ways, dtype=np.int64), shape.waypoints, 2)
        self._drawn = drawn  # no buffer: a function of the options, not of what is learned
        self.register_buffer("centre", torch.zeros(shape.waypoints, 2))
        self.register_buffer("spread", torch.ones(shape.waypoints, 2))
        self.register_buffer("grid_offset", offsets[:, None, None].clone())
        self.register_buffer("grid_scale", scales[:, None, None].clone())

    def forward(
        self,
        bev: Tensor,
        speed: Tensor,
        command: Tensor,
        route: Tensor,
        plan: Tensor | None = None,
        random: Tensor | None = None,
        noise: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """A plan in metres (samples x waypoints x 2) and the deviation of each of its coordinates.

        Given an expert's `plan` as well, normal `random` numbers (samples x draws x waypoints x 2)
        and how much `noise` of them goes on it (samples x draws): how far off the model is with
        what it takes for the plan behind, and the logarithms of the deviations that it expects;
        both in its own units, of samples x draws x waypoints x 2.
        """
        scene = self._see(bev, speed, command, route)
        if plan is not None and random is not None and noise is not None:
            clean, level = self._to_units(plan, speed)[:, None], noise[..., None, None]
            noisy = signal_share(level) * clean + noise_share(level) * random
            found = self._predict(scene, noisy, noise)
            return found.clean - clean, found.deviation
        # The same beginnings for every scene: a plan does not hang on random numbers.
        beginnings = torch.from_numpy(self._drawn).to(self.order).expand(len(speed), -1, -1, -1)
        first = self._predict(scene, beginnings[:, :1], self.order.new_ones(len(speed), 1))
        units = take_off(lambda x, t: self._predict(scene, x, t).clean, beginnings, self.steps)
        metres = self._to_metres(_middle_one(units * self.spread) / self.spread, speed)
        return metres, first.deviation[:, 0].exp() * self.spread

    def _see(
        self, bev: Tensor, speed: Tensor, command: Tensor, route: Tensor
    ) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of every layer."""
        grid = (bev.to(self.order.dtype) - self.grid_offset) / self.grid_scale
        grid = self.stem(grid).flatten(2).transpose(1, 2) + self.places
        told = (self.speed(speed[:, None] / _SPEED), self.command(command))
        state = torch.stack([*told, self.route(route.flatten(1) / _FAR)], 1)
        kept = []
        for layer in self.seeing:
            grid, state, key, value = layer(grid, state)
            kept.append((key, value))
        return kept

    def _predict(
        self, scene: list[tuple[Tensor, Tensor]], noisy: Tensor, noise: Tensor
    ) -> Predicted:
        draws, waypoints = noisy.shape[1:3]
        plan = (self.take_in(noisy) + self.order).flatten(0, 1)
        level = self.noise(_waves(noise.to(self.order.dtype))).flatten(0, 1)
        for layer, seen in zip(self.planning, scene, strict=True):
            key, value = (x.repeat_interleave(draws, 0) if draws > 1 else x for x in seen)
            plan = layer(plan, level, key, value)
        clean, deviation = self.put_out(self.last(plan)).to(self.spread.dtype).chunk(2, -1)
        shape = (-1, draws, waypoints, 2)
        return Predicted(clean.reshape(shape), deviation.reshape(shape).clamp(_NARROWEST, _WIDEST))

    def _to_units(self, plan: Tensor, speed: Tensor) -> Tensor:
        """Waypoints in metres (samples x waypoints x 2) as the model knows them."""
        return (plan - self._straight_on(speed) - self.centre) / self.spread

    def _to_metres(self, units: Tensor, speed: Tensor) -> Tensor:
        return units * self.spread + self.centre + self._straight_on(speed)

    def _straight_on(self, speed: Tensor) -> Tensor:
        """Where constant velocity leads."""
        ahead = speed[:, None] * self.waypoint_times
        return torch.stack([ahead, torch.zeros_like(ahead)], -1)


def _middle_one(ways: Tensor) -> Tensor:
    """Of each sample's ways the one that is nearest to all others. Their mean would be none of
    them: where one waits or goes, it creeps."""
    apart = (ways[:, :, None] - ways[:, None]).square().sum(-1).add(1e-12).sqrt().mean(-1)
    chosen = apart.sum(2).argmin(1)
    return ways[torch.arange(len(ways), device=ways.device), chosen]


def _waves(noise: Tensor) -> Tensor:
    waves = torch.exp(torch.linspace(0, math.log(200.0), _WAVES).to(noise))
    angles = noise[..., None] * waves
    return torch.cat([angles.sin(), angles.cos()], -1)
