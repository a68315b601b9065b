"""Real inputs for a model that is exported: samples of its test split, or the recipe's example."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from phalanx.engine.data.micro_batches import Fetcher, Request, map_tensors
from phalanx.errors import Finding, UserError
from phalanx.planner.schema.micro_batches import Slot
from phalanx.recipe.graphs import Exported
from phalanx.recipe.interface import Batch, Recipe, Split, count_samples

COMPARED = 50
"""Samples on which the two are compared."""
CALIBRATED = 256
"""Samples from which the ranges of int8 are taken."""

Inputs = dict[str, Tensor]


class RealSamples:
    """Batches of real samples, as the recipe's data gives them."""

    def __init__(self, recipe: Recipe, split: Split = "test") -> None:
        self._recipe = recipe
        self.split: str = split
        self._example: Batch | None = None
        self._fetcher: Fetcher | None = None
        try:
            data = recipe.data(split)
            self.count = len(data)
        except Exception as error:  # the data may be on another machine
            self._use_example(f"{type(error).__name__}: {error}")
            return
        if self.count == 0:
            self._use_example(f"the {split} split is empty")
            return
        self._fetcher = Fetcher(recipe, data, seed=0, is_shuffled=False)

    def _use_example(self, why: str) -> None:
        self._example = self._recipe.example()
        if self._example is None:
            raise UserError(
                Finding(
                    slug="export-no-samples",
                    what="there are no real inputs to run the model on",
                    why=f"the {self.split} split cannot be read ({why[:300]}), and the recipe has "
                    "no example() of its own",
                    fix="bring the data, or name it: key=value; --to safetensors needs none",
                )
            )
        self.split, self.count = "example", 1

    def batch(self, first: int, size: int) -> Batch:
        """`size` samples from `first` on; behind the last comes the first again."""
        if self._fetcher is None:
            return self._examples(size)
        ids = [(first + n) % self.count for n in range(size)]
        start = ids[0]
        if ids == list(range(start, start + size)):
            return self._fetch(start, start + size)
        import numpy as np

        slot = Slot(0, 0, size)
        request = Request(0, slot, is_training=False, ids=np.array(ids, dtype=np.int64))
        return self._fetcher[request].batch

    def _examples(self, size: int) -> Batch:
        """The recipe's example again and again, up to `size` samples."""
        there = count_samples(self._example)
        places = torch.arange(size) % there

        def take(tensor: Tensor) -> Tensor:
            return tensor[places] if tensor.dim() and len(tensor) == there else tensor

        return map_tensors(self._example, take)

    def _fetch(self, start: int, stop: int) -> Any:
        assert self._fetcher is not None
        return self._fetcher[Request(0, Slot(0, start, stop), is_training=False)].batch

    def inputs(self, exported: Exported, size: int, limit: int = COMPARED) -> Iterator[Inputs]:
        """Inputs of the model in batches of `size`, up to `limit` samples and at least once."""
        wanted = max(size, min(limit, self.count))
        for first in range(0, wanted - size + 1, size):
            yield dict(exported.inputs(self.batch(first, size)))
            if self._fetcher is None:
                return
