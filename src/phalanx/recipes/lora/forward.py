"""The forward of a fine-tuned language model as other tools run it: tokens in, scores out, with the
adapters added to the weights."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from phalanx.recipe import Batch, Exported, Finding, UserError

if TYPE_CHECKING:
    from phalanx.recipes.lora.recipe import LoraRecipe


def exported_forward(recipe: LoraRecipe, network: nn.Module) -> Exported:
    """Merges the adapters of this network for good."""
    if found := _not_offered(recipe):
        raise UserError(found)
    layers: list[Any] = [module for module in network.modules() if hasattr(module, "lora_A")]
    for layer in layers:
        layer.merge()
    return Exported(
        CausalForward(network),
        _inputs,
        ("logits",),
        dynamic={"input_ids": {1: "length"}},
        stand_in=StandIn,
    )


class CausalForward(nn.Module):
    """Tokens, padded on the right, to the scores of what comes after each."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, input_ids: Tensor) -> Tensor:
        scores: Tensor = self.network(input_ids=input_ids, use_cache=False).logits
        return scores


class StandIn(nn.Module):
    """Called as the network is, it runs a file instead."""

    def __init__(self, run: Callable[..., tuple[Tensor, ...]]) -> None:
        super().__init__()
        self._run_file = run

    def forward(self, input_ids: Tensor, *, use_cache: bool, **others: Tensor) -> Any:
        if others:
            raise UserError(_packed())
        return SimpleNamespace(logits=self._run_file(input_ids)[0])


def _inputs(batch: Batch) -> dict[str, Tensor]:
    if "segments" in batch:
        raise UserError(_packed())
    return {"input_ids": batch["input_ids"]}


def _not_offered(recipe: LoraRecipe) -> Finding | None:
    kind = recipe.config.model_type
    is_other = any(hasattr(recipe.config, name) for name in ("vision_config", "audio_config"))
    if recipe.is_seq2seq or is_other:
        return Finding(
            slug="export-not-offered",
            what=f"a `{kind}` model is not exported as a graph",
            why="one forward of it is no step of its use: an encoder, pictures or sound come first",
            fix="--to merged, which transformers reads",
        )
    if recipe.options.quantize is not None:
        return Finding(
            slug="export-not-offered",
            what="a model with 4-bit weights is not exported as a graph",
            why=f"options.quantize = {recipe.options.quantize}: adapters are added to the weights "
            "as they were before",
            fix="the same command with quantize=null",
        )
    return None


def _packed() -> Finding:
    return Finding(
        slug="export-packed",
        what="packed rows cannot be given to an exported model",
        why="options.packing is on: samples that share a row need a mask that the file does not "
        "take",
        fix="the same command with packing=false",
    )
