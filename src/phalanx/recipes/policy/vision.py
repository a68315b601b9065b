"""Pictures as tokens: a small network that learns with the policy, or a vision model of
transformers, which learns too or looks at each picture once."""

from __future__ import annotations

import hashlib
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.recipe import cache_folder, new_folder, report
from phalanx.recipes.policy.demonstrations import Demonstrations
from phalanx.recipes.policy.options import PolicyOptions
from phalanx.recipes.policy.pretrained import load_vision_model

SMALL_SIZE = 128
"""Features of a token of the small network."""
_GRID = 4  # tokens on a side that a frozen model's are averaged to: 729 of them would fill disks
_BATCH = 32


class SmallVision(nn.Module):
    """Four convolutions, each halving the picture; every place left is a token."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side
        channels = (3, 32, 64, 96, SMALL_SIZE)
        self.layers = nn.ModuleList(
            nn.Conv2d(one, other, 5 if index == 0 else 3, stride=2, padding=2 if index == 0 else 1)
            for index, (one, other) in enumerate(pairwise(channels))
        )
        self.norms = nn.ModuleList(nn.GroupNorm(8, width) for width in channels[1:])
        tokens = (side // 16 + (side % 16 > 0)) ** 2
        self.place = nn.Parameter(torch.randn(tokens, SMALL_SIZE) * 0.02)

    def forward(self, images: Tensor) -> Tensor:
        x = resized(images, self.side) - 0.5
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = F.silu(norm(layer(x)))
        return x.flatten(2).transpose(1, 2) + self.place


class PretrainedVision(nn.Module):
    """A vision model of transformers, given bytes."""

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, side: int, mean: list[float], std: list[float]) -> None:
        super().__init__()
        self.network = network
        self.side = side
        self.register_buffer("mean", torch.tensor(mean)[:, None, None], persistent=False)
        self.register_buffer("std", torch.tensor(std)[:, None, None], persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        scaled = (resized(images, self.side) - self.mean) / self.std
        hidden: Tensor = self.network(pixel_values=scaled).last_hidden_state
        if hidden.dim() == 4:  # of a convolutional one: features, height, width
            hidden = hidden.flatten(2).transpose(1, 2)
        return hidden


def resized(images: Tensor, side: int) -> Tensor:
    """Bytes as numbers from 0 to 1, at another size."""
    images = images.float() / 255
    if images.shape[-2:] == (side, side):
        return images
    return F.interpolate(images, (side, side), mode="bilinear", antialias=True)


def load_vision(name: str) -> PretrainedVision:
    """A vision model with its weights."""
    model, prepared = load_vision_model(name, "options.vision_encoder")
    size = prepared.get("size") or {}
    side = size if isinstance(size, int) else size.get("height") or size.get("shortest_edge")
    mean, std = (list(prepared.get(f"image_{what}") or [0.5] * 3) for what in ("mean", "std"))
    return PretrainedVision(model, int(side or model.config.image_size), mean, std)


class Frozen:
    """A vision model that only looks: tokens averaged to a small grid, in half precision."""

    def __init__(self, name: str, device: torch.device | str = "cpu") -> None:
        self._vision = load_vision(name).to(device).eval()
        self._device = device

    def look(self, images: np.ndarray) -> np.ndarray:
        """Height x width x 3 bytes each, to tokens x features."""
        pixels = torch.from_numpy(np.array(images)).permute(0, 3, 1, 2)  # mapped ones are read-only
        with torch.no_grad():
            tokens = self._vision(pixels.to(self._device))
        return np.asarray(_pooled(tokens).half().cpu().numpy())


def _pooled(tokens: Tensor) -> Tensor:
    """A square of tokens as a smaller one; those that stand for no place are left out."""
    side = int(tokens.shape[1] ** 0.5)
    places = tokens[:, tokens.shape[1] - side * side :].transpose(1, 2)
    if side > _GRID:
        square = places.reshape(len(places), -1, side, side)
        places = F.adaptive_avg_pool2d(square, _GRID).flatten(2)
    return places.transpose(1, 2)


def token_size(found: Demonstrations, options: PolicyOptions) -> int:
    """Numbers in a token of what cameras see; 0 without cameras."""
    if not options.cameras:
        return 0
    if options.vision_encoder is None:
        return SMALL_SIZE
    if not options.train_vision:
        return int(cached_features(found, options).shape[-1])
    vision = load_vision(options.vision_encoder)
    with torch.no_grad():
        blank = torch.zeros(1, 3, vision.side, vision.side, dtype=torch.uint8)
        return int(vision(blank).shape[-1])


def cached_features(found: Demonstrations, options: PolicyOptions) -> np.ndarray:
    """What the frozen model sees in every picture, steps x cameras x tokens x features: looked at
    once, then mapped from a file."""
    assert options.vision_encoder is not None
    stamps = [(c, _stamp(found.folder / f"images-{c}.npy")) for c in options.cameras]
    asked = json.dumps([str(found.folder.resolve()), options.vision_encoder, stamps]).encode()
    folder = cache_folder("policy") / f"seen-{hashlib.sha256(asked).hexdigest()[:16]}"
    file = folder / "seen.npy"
    if not file.is_file():
        _look_at_all(found, options, folder)
    return np.asarray(np.load(file, mmap_mode="r", allow_pickle=False))


def _stamp(file: Path) -> list[int]:
    about = file.stat()
    return [about.st_size, about.st_mtime_ns]


def _look_at_all(found: Demonstrations, options: PolicyOptions, folder: Path) -> None:
    frozen = Frozen(options.vision_encoder or "", "cuda" if torch.cuda.is_available() else "cpu")
    steps = len(found.states)
    with new_folder(folder) as making:
        table: Any = None
        for start in range(0, steps, _BATCH):
            rows = slice(start, min(start + _BATCH, steps))
            seen = np.stack([frozen.look(found.images[c][rows]) for c in options.cameras], 1)
            if table is None:
                shape = (steps, *seen.shape[1:])
                table = np.lib.format.open_memmap(
                    making / "seen.npy", mode="w+", dtype=seen.dtype, shape=shape
                )
            table[rows] = seen
            report(f"{options.vision_encoder} looks at pictures: {rows.stop:,} of {steps:,} steps")
        table.flush()
        del table
