"""What changes from step to step, at addresses that stay: a CUDA graph reads it there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from phalanx.engine.data.micro_batches import MicroBatch, map_tensors


@dataclass
class Numbers:
    """Reciprocals of the terms' weights, then learning rates of the groups, at a fixed address."""

    tensor: Tensor
    last: list[float] = field(default_factory=list)

    def put(self, values: list[float]) -> None:
        if values != self.last:
            # From memory that is not pinned: it is read before this returns, so that the host may
            # run ahead.
            self.tensor.copy_(torch.tensor(values, dtype=self.tensor.dtype), non_blocking=True)
            self.last = values


def sign_of(micro_batch: MicroBatch) -> tuple[Any, ...]:
    """What must be equal for a graph to be replayed."""
    found: list[Any] = []
    _look(micro_batch.batch, found)
    return (*found, micro_batch.keys.shape)


def _look(tree: Any, found: list[Any]) -> None:
    if isinstance(tree, Tensor):
        found += (tree.shape, tree.dtype, tree.stride())
    elif isinstance(tree, dict):
        for name, value in tree.items():
            found.append(name)
            _look(value, found)
    elif isinstance(tree, (list, tuple)):
        found.append(len(tree))
        for value in tree:
            _look(value, found)
    else:
        found.append(tree)


def copy_batch(source: MicroBatch, place: MicroBatch) -> None:
    torch._foreach_copy_(_tensors(place), _tensors(source), non_blocking=True)


def _tensors(micro_batch: MicroBatch) -> list[Tensor]:
    found: list[Tensor] = []

    def collect(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    map_tensors((micro_batch.batch, micro_batch.keys), collect)
    return found
