"""A recipe's model with weights that were trained, whole in this process: to export it, or to run
it in a benchmark."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from phalanx.engine.checkpoint.initial_weights import load_initial_weights, plain_file
from phalanx.engine.checkpoint.pretrained import Pretrained
from phalanx.engine.data.order import INIT
from phalanx.engine.process.group import Process
from phalanx.engine.strategies.single import Single
from phalanx.errors import Finding
from phalanx.recipe.interface import Recipe
from phalanx.recipe.keys import make_key
from phalanx.recipe.pretrained import stored_weights


def build_model(
    recipe: Recipe, weights: Path, device: torch.device | None = None
) -> tuple[nn.Module, list[Finding]]:
    """The model in evaluation mode, and what there is to say about its weights; raises UserError
    when they are another model's."""
    torch.manual_seed(make_key(0, INIT) & (1 << 62) - 1)  # nothing of it is left
    device = device or torch.device("cpu")
    strategy = Single(recipe, recipe.model().to(device), Process(0, 1, device, "none"))
    pretrained = Pretrained(stored_weights(recipe))
    pretrained.load(strategy)
    findings = load_initial_weights(strategy, plain_file(recipe, weights), pretrained)
    return strategy.model.eval(), findings
