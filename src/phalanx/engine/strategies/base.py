"""What a strategy is: how the model is held and how gradients of many ranks become one."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import nn

from phalanx.engine.process import Process
from phalanx.errors import Finding
from phalanx.recipe.interface import Batch, Recipe, Term


class StepSums(Protocol):
    """The loss sums of a step so far, for a strategy that reduces them itself."""

    def take(self) -> torch.Tensor:
        """Take the sums out, in one row."""
        ...

    def put(self, row: torch.Tensor) -> None:
        """Put the sums over all slots of all ranks in."""
        ...


class LossModule(nn.Module):
    """The recipe's loss as a module, so that one forward covers all a strategy must watch.

    Without a batch it gives a zero that reaches every parameter: the part of a rank that has no
    micro-batch in a step."""

    def __init__(self, recipe: Recipe, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.reachable = [p for p in model.parameters() if p.requires_grad]
        """Parameters that get a gradient; DDP takes the others out."""
        self._recipe = recipe

    def forward(self, batch: Batch, keys: torch.Tensor | None) -> Mapping[str, Term] | torch.Tensor:
        if keys is None:
            return nothing(self.reachable)
        return self._recipe.loss(self.model, batch, keys)


def nothing(parameters: list[nn.Parameter]) -> torch.Tensor:
    """Zero, with a gradient of zeros for each parameter; an empty slice also hides NaN weights."""
    return torch.stack([p.flatten()[:0].sum().float() for p in parameters]).sum()


class Strategy:
    """One rank that holds the whole model: the base of the others, and `single` itself."""

    name = "single"

    def __init__(self, recipe: Recipe, model: nn.Module, process: Process) -> None:
        self.model = model
        self.process = process
        self.bare_loss = LossModule(recipe, model)
        self.loss_module: nn.Module = self.bare_loss

    def settle(self, micro_batch: Any, run_backward: Any) -> list[Finding]:
        """Whatever must run and be thrown away before the first step."""
        return []

    def loss(self, batch: Batch, keys: torch.Tensor) -> Mapping[str, Term]:
        """The recipe's terms for a micro-batch."""
        terms: Mapping[str, Term] = self.loss_module(batch, keys)
        return terms

    def hold_gradients(self) -> AbstractContextManager[Any]:
        """Inside, backward adds up gradients on this rank without telling the others."""
        return nullcontext()

    def contribute_nothing(self) -> None:
        """Take part in the reduction of a step in which this rank has no micro-batch."""

    @property
    def gradient_scale(self) -> float:
        """What the loss is multiplied by because the strategy divides gradients by it."""
        return 1.0

    def resume(self) -> None:
        """Called once the weights of the first step are in place."""

    def before_step(self, num_slots: int) -> None:
        """Called before the first micro-batch of a step, also on a rank that has none."""

    def after_slot(self, slot: int, sums: StepSums) -> None:
        """Called after each micro-batch's backward."""

    def after_step(self, num_slots: int, sums: StepSums) -> None:
        """Make gradients, and buffers that forward changed, the same on every rank."""

    def read_gradient(self, parameter: nn.Parameter) -> torch.Tensor | None:
        """The gradient of the global batch, for who looks on: whole, or this rank's shard of it as
        a DTensor. Called on every rank, for the same parameters in the same order."""
        return parameter.grad

    def read_weight(self, parameter: nn.Parameter) -> torch.Tensor:
        """The weight, likewise."""
        return parameter.detach()
