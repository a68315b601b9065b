"""LoRA fine-tuning of a language model."""

from __future__ import annotations

from phalanx.recipe import Recipe
from phalanx.recipes.lora.options import LoraOptions


class LoraRecipe(Recipe):
    """A pretrained model whose linear layers learn through small adapters beside them."""

    Options = LoraOptions
