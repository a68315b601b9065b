"""The recipe's loss and evaluation as a module."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from phalanx.recipe.interface import Batch, Recipe, Term
from phalanx.recipe.showing import Media, Sample, Showing


class LossModule(nn.Module):
    """One module for both, so that one forward covers all a strategy must
    watch, whatever methods of the model the recipe calls.

    Without a batch it gives a zero that reaches every parameter: the part of a rank that has no
    micro-batch in a step. In evaluation it gives the recipe's samples then."""

    def __init__(self, recipe: Recipe, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.reachable = [p for p in model.parameters() if p.requires_grad]
        """Parameters that get a gradient; DDP takes the others out."""
        self.autocast: Callable[[], AbstractContextManager[object]] = nullcontext
        """Context entered again inside, for a strategy whose forward leaves the caller's."""
        self.loss: Callable[[nn.Module, Batch, torch.Tensor], Mapping[str, Term]] = recipe.loss
        """The recipe's own, or compiled."""
        self._recipe = recipe

    def forward(
        self, batch: Batch, keys: torch.Tensor | None, is_evaluation: bool = False
    ) -> Mapping[str, Any] | torch.Tensor | Sequence[Sample | Media]:
        with self.autocast():
            if is_evaluation and batch is None:
                assert isinstance(self._recipe, Showing)
                return self._recipe.samples(self.model)
            if is_evaluation:
                return self._recipe.evaluate(self.model, batch)
            if keys is None:
                return nothing(self.reachable)
            return self.loss(self.model, batch, keys)


def nothing(parameters: list[nn.Parameter]) -> torch.Tensor:
    """Zero, with a gradient of zeros for each parameter; an empty slice also hides NaN weights."""
    return torch.stack([p.flatten()[:0].sum().float() for p in parameters]).sum()
