"""Models that take noise out: a U-Net over images, a transformer over actions; and a planner that
looks from above."""

import math

import torch
import torch.nn.functional as F
from attention import Attention, Block, FusedAttention
from convolutional import ResNetBody
from torch import nn


def waves(moment, width):
    """Sines and cosines of a moment in [0, 1]."""
    rates = torch.exp(
        -math.log(10000.0) * torch.arange(width // 2, device=moment.device) * 2 / width
    )
    angles = 1000 * moment[:, None] * rates[None]
    return torch.cat([angles.cos(), angles.sin()], -1)


class UnetBlock(nn.Module):
    """Two convolutions with what the moment says between them; attention where images are small."""

    def __init__(self, inputs, outputs, of_moment, heads):
        super().__init__()
        groups = math.gcd(32, inputs, outputs)
        self.first, self.second = nn.GroupNorm(groups, inputs), nn.GroupNorm(groups, outputs)
        self.one = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.two = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.moment, self.drop = nn.Linear(of_moment, outputs), nn.Dropout(0.1)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()
        self.norm = nn.GroupNorm(groups, outputs) if heads else None
        self.attend = FusedAttention(outputs, heads) if heads else None

    def forward(self, x, moment):
        inner = self.one(F.silu(self.first(x))) + self.moment(F.silu(moment))[:, :, None, None]
        x = self.skip(x) + self.two(self.drop(F.silu(self.second(inner))))
        if self.attend is None:
            return x
        seen = self.attend(self.norm(x).flatten(2).transpose(1, 2))
        return x + seen.transpose(1, 2).reshape(x.shape)


class DiffusionUnet(nn.Module):
    """64 x 64 images: widths 128 to 512, attention at 16 and 8."""

    def __init__(self, width, factors, depth, attended):
        super().__init__()
        self.width, of_moment = width, 4 * width
        self.moment = nn.Sequential(
            nn.Linear(width, of_moment), nn.SiLU(), nn.Linear(of_moment, of_moment)
        )
        self.stem, inputs, kept = nn.Conv2d(3, width, 3, padding=1), width, [width]
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        for level, factor in enumerate(factors):
            heads = 4 if level in attended else 0
            for _ in range(depth):
                self.down.append(UnetBlock(inputs, factor * width, of_moment, heads))
                inputs = factor * width
                kept.append(inputs)
            if level < len(factors) - 1:
                self.down.append(nn.Conv2d(inputs, inputs, 3, 2, 1))
                kept.append(inputs)
        self.middle = UnetBlock(inputs, inputs, of_moment, 4)
        for level, factor in reversed(list(enumerate(factors))):
            heads = 4 if level in attended else 0
            for _ in range(depth + 1):
                self.up.append(UnetBlock(inputs + kept.pop(), factor * width, of_moment, heads))
                inputs = factor * width
            if level:
                self.up.append(nn.Conv2d(inputs, inputs, 3, padding=1))
        self.last = nn.Sequential(
            nn.GroupNorm(min(32, inputs), inputs), nn.SiLU(), nn.Conv2d(inputs, 3, 3, padding=1)
        )

    def forward(self, x, moment):
        moment = self.moment(waves(moment, self.width))
        x = self.stem(x)
        kept = [x]
        for part in self.down:
            x = part(x, moment) if isinstance(part, UnetBlock) else part(x)
            kept.append(x)
        x = self.middle(x, moment)
        for part in self.up:
            if isinstance(part, UnetBlock):
                x = part(torch.cat([x, kept.pop()], 1), moment)
            else:
                x = part(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return self.last(x)


class PolicyTransformer(nn.Module):
    """Actions with noise in, the noise out, given what was seen: one token per action, per
    observation and for the moment."""

    def __init__(self, *, actions, of_action, of_observation, observations, width, heads, depth):
        super().__init__()
        self.width, self.actions = width, actions
        self.action = nn.Linear(of_action, width)
        self.seen = nn.Linear(of_observation, width)
        self.moment = nn.Sequential(
            nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width)
        )
        self.place = nn.Parameter(0.02 * torch.randn(1, actions + observations + 1, width))
        self.blocks = nn.ModuleList(
            Block(width, FusedAttention(width, heads)) for _ in range(depth)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, of_action)

    def forward(self, noisy, moment, seen):
        when = self.moment(waves(moment, self.width))[:, None]
        x = torch.cat([self.action(noisy), self.seen(seen), when], 1) + self.place
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, : self.actions]))


class CrossBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.attend, self.look = Attention(width, heads), Attention(width, heads)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, context):
        x = x + self.attend(self.norms[0](x))
        x = x + self.look(self.norms[1](x), context)
        return x + self.narrow(F.gelu(self.wide(self.norms[2](x))))


class BevPlanner(nn.Module):
    """Cameras through one ResNet; queries of a map from above and of waypoints look at all of it.
    60M parameters."""

    def __init__(self, *, width, heads, depth, stem, depths, cells, waypoints, classes):
        super().__init__()
        self.cells = cells
        self.cameras = ResNetBody(stem, depths)
        self.project = nn.Linear(self.cameras.channels[-1], width)
        self.queries = nn.Parameter(0.02 * torch.randn(1, cells + waypoints, width))
        self.blocks = nn.ModuleList(CrossBlock(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.map, self.path = nn.Linear(width, classes), nn.Linear(width, 2)

    def forward(self, images):
        batch, cameras = images.shape[:2]
        features = self.cameras(images.flatten(0, 1))[-1].flatten(2).transpose(1, 2)
        context = self.project(features).unflatten(0, (batch, cameras)).flatten(1, 2)
        x = self.queries.expand(batch, -1, -1)
        for block in self.blocks:
            x = block(x, context)
        x = self.norm(x)
        return self.map(x[:, : self.cells]), self.path(x[:, self.cells :])
