"""Demonstrations as samples: what is known at a step, and the actions of that step and those after
it. Where an episode ends, its last action is repeated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from phalanx.recipe import Data, Split, Tensors, keys
from phalanx.recipes.policy.demonstrations import Demonstrations
from phalanx.recipes.policy.options import PolicyOptions


class Part(NamedTuple):
    """The steps of one split, and what belongs to them."""

    steps: np.ndarray
    """Rows of the demonstrations' arrays."""
    last: np.ndarray
    """The last row of each step's episode."""
    task: np.ndarray
    """Index among the trained tasks."""


def split(found: Demonstrations, tasks: Sequence[str], share: float) -> dict[Split, Part]:
    """Episodes of the trained tasks: of each task a share, at least one, is for the evaluation."""
    names = [task.name for task in found.tasks]
    parts: dict[Split, list[tuple[int, int, int]]] = {"train": [], "test": []}
    for index, name in enumerate(tasks):
        rows = found.episodes[found.episodes[:, 2] == names.index(name)]
        order = np.argsort(keys.number_keys(keys.make_key(0), np.arange(len(rows))))
        held = max(1, round(share * len(rows))) if len(rows) > 1 else 0
        for place, row in enumerate(order.tolist()):
            first, length, _ = rows[row].tolist()
            parts["test" if place < held else "train"].append((first, length, index))
    return {name: _part(sorted(rows)) for name, rows in parts.items()}


def _part(rows: list[tuple[int, int, int]]) -> Part:
    columns = [
        (np.arange(first, first + length), first + length - 1, task) for first, length, task in rows
    ]
    counts = [len(steps) for steps, _, _ in columns]
    return Part(
        np.concatenate([steps for steps, _, _ in columns] or [np.empty(0, np.int64)]),
        np.repeat([last for _, last, _ in columns], counts).astype(np.int64),
        np.repeat([task for _, _, task in columns], counts).astype(np.int64),
    )


def thinned(part: Part, count: int) -> Part:
    """So many of the steps, evenly from all of them."""
    if len(part.steps) <= count:
        return part
    chosen = np.linspace(0, len(part.steps) - 1, count).round().astype(np.int64)
    return Part(*(column[chosen] for column in part))


def open_part(
    found: Demonstrations, part: Part, options: PolicyOptions, seen: np.ndarray | None
) -> Data:
    """Arrays in memory where pictures are not among them; pictures stay mapped."""
    ahead = np.minimum(part.steps[:, None] + np.arange(options.chunk), part.last[:, None])
    arrays: dict[str, Any] = {
        "state": found.states[part.steps],
        "actions": found.actions[ahead],
        "task": part.task,
        "number": part.steps,
    }
    if seen is not None:
        arrays["seen"] = seen[part.steps]
    if not options.cameras or seen is not None:
        return Tensors(arrays)
    return PictureData(arrays, [found.images[c] for c in options.cameras], part.steps)


class PictureData:
    """Samples with pictures, which are read when they are asked for."""

    def __init__(
        self, arrays: dict[str, Any], images: Sequence[np.ndarray], steps: np.ndarray
    ) -> None:
        self._arrays = arrays
        self._images = images
        self._steps = steps

    def __len__(self) -> int:
        return len(self._steps)

    def __getitems__(self, ids: np.ndarray, sample_keys: np.ndarray) -> dict[str, torch.Tensor]:
        batch = {name: torch.from_numpy(array[ids]) for name, array in self._arrays.items()}
        rows = self._steps[ids]
        pictures = np.stack([images[rows] for images in self._images], 1)
        return {**batch, "images": torch.from_numpy(pictures).permute(0, 1, 4, 2, 3).contiguous()}
