"""Adapters and merged models as other tools read them."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from phalanx.recipes.lora.network import ADAPTER, peft_name, scaling
from phalanx.recipes.lora.pretrained import place_weights

if TYPE_CHECKING:
    from phalanx.recipes.lora.recipe import LoraRecipe


def export_adapter(
    recipe: LoraRecipe, tensors: Mapping[str, Tensor], folder: Path, *, is_whole: bool
) -> None:
    """What `PeftModel.from_pretrained` reads; `is_whole` adds the tokenizer and the config."""
    from safetensors.torch import save_file

    # What is tied is there under each of its names: peft asks for them all.
    renamed = {name: peft_name(name) for name in tensors}
    adapter = {new: tensors[name].contiguous() for name, new in renamed.items() if new is not None}
    save_file(adapter, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    with torch.device("meta"):
        network = recipe.model()
    config: Any = copy.copy(network.peft_config[ADAPTER])  # type: ignore[index, operator]
    config.base_model_name_or_path = recipe.options.model or str(recipe.base.folder)
    config.inference_mode = True
    facts = {k: sorted(v) if isinstance(v, set) else v for k, v in config.to_dict().items()}
    text = json.dumps(facts, indent=2, sort_keys=True)
    (folder / "adapter_config.json").write_text(text + "\n", encoding="utf-8")
    if is_whole:
        _write_around(recipe, folder)


def export_merged(
    recipe: LoraRecipe, tensors: Mapping[str, Tensor], folder: Path, *, is_half: bool
) -> None:
    """The pretrained model with the adapters added to its weights, under the names it had."""
    from safetensors import safe_open
    from safetensors.torch import save_file
    from transformers.pytorch_utils import Conv1D

    with torch.device("meta"):
        network = recipe.model()
    layers = dict(network.named_modules())
    merged = {}
    for name, (file, stored) in place_weights(recipe.base, network).items():
        if peft_name(name) is not None:  # of the adapter: not in the model it was made for
            continue
        trained = name.replace(".original_module.", f".modules_to_save.{ADAPTER}.")
        with safe_open(file, framework="pt") as opened:
            weight = opened.get_tensor(stored)
        if trained in tensors:
            weight = tensors[trained].to(weight.dtype)
        if name.endswith(".base_layer.weight"):
            is_turned = isinstance(layers[name.removesuffix(".weight")], Conv1D)
            place = name.removesuffix("base_layer.weight")
            changed = _add(weight.T if is_turned else weight, place, tensors, recipe)
            weight = changed.T if is_turned else changed
        merged[stored] = (weight.to(torch.float16) if is_half else weight).contiguous()
    save_file(merged, folder / "model.safetensors", metadata={"format": "pt"})
    _write_around(recipe, folder, dtype="float16" if is_half else None)


def _add(weight: Tensor, place: str, tensors: Mapping[str, Tensor], recipe: LoraRecipe) -> Tensor:
    """In fp32: W + scaling x B A, and for DoRA its rows brought to their learned lengths."""
    first = tensors[f"{place}lora_A.{ADAPTER}.weight"].float()
    second = tensors[f"{place}lora_B.{ADAPTER}.weight"].float()
    changed = weight.float() + scaling(recipe.options) * (second @ first)
    magnitude = f"{place}lora_magnitude_vector.{ADAPTER}.weight"
    if magnitude in tensors:
        changed = changed * (tensors[magnitude].float() / changed.norm(dim=1))[:, None]
    return changed.to(weight.dtype)


def _write_around(recipe: LoraRecipe, folder: Path, dtype: str | None = None) -> None:
    config = type(recipe.config).from_dict(recipe.config.to_dict())
    if recipe.options.add_tokens:
        config.get_text_config().vocab_size = max(
            len(recipe.tokenizer), config.get_text_config().vocab_size
        )
    if dtype is not None:
        config.dtype = dtype
    config.save_pretrained(folder)
    recipe.tokenizer.save_pretrained(folder)
