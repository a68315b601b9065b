"""Adapters and merged models as other tools read them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from phalanx.recipes.lora.network import ADAPTER, adapter_config, peft_name, scaling
from phalanx.recipes.lora.pretrained import place_weights

if TYPE_CHECKING:
    from phalanx.recipes.lora.recipe import LoraRecipe


def export_adapter(
    recipe: LoraRecipe, tensors: Mapping[str, Tensor], folder: Path, *, is_whole: bool
) -> None:
    """What `PeftModel.from_pretrained` reads; `is_whole` adds the tokenizer and the config."""
    from safetensors.torch import save_file

    renamed = {name: peft_name(name) for name in tensors}
    adapter = {new: tensors[name].contiguous() for name, new in renamed.items() if new is not None}
    save_file(adapter, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    with torch.device("meta"):
        network = recipe.model()
    config = adapter_config(network, recipe.options)
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

    # The adapters are added to the weights as they were before they were quantized.
    plain = type(recipe)(recipe.options.model_copy(update={"quantize": None}))
    with torch.device("meta"):
        network = plain.model()
    merged = {}
    for name, (file, stored) in place_weights(recipe.base, network).items():
        if ".lora_" in name:
            continue
        grown = name.replace(".original_module.", f".modules_to_save.{ADAPTER}.")
        with safe_open(file, framework="pt") as opened:
            weight = tensors[grown] if grown in tensors else opened.get_tensor(stored)
        if name.endswith(".base_layer.weight"):
            weight = _add(weight, name.removesuffix("base_layer.weight"), tensors, recipe)
        merged[stored] = weight.to(torch.float16) if is_half else weight.contiguous()
    save_file(merged, folder / "model.safetensors", metadata={"format": "pt"})
    _write_around(recipe, folder, dtype="float16" if is_half else None)


def _add(weight: Tensor, place: str, tensors: Mapping[str, Tensor], recipe: LoraRecipe) -> Tensor:
    """In fp32: W + scaling x B A, and for DoRA its rows brought to their learned lengths."""
    first = tensors[f"{place}lora_A.{ADAPTER}.weight"].float()
    second = tensors[f"{place}lora_B.{ADAPTER}.weight"].float()
    change = scaling(recipe.options) * (second @ first)
    changed = weight.float() + (change if change.shape == weight.shape else change.T)
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
