"""Adapters and merged models as other tools read them."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from phalanx.recipes.lora.base import open_processor, save_tokenizer
from phalanx.recipes.lora.network import ADAPTER, is_turned, peft_name, scaling, stored_name
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
    config: Any = copy.copy(network.peft_config[ADAPTER])  # type: ignore[index]
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
    from safetensors.torch import save_file

    # The adapters are added to the weights as they were before they were quantized.
    plain = type(recipe)(recipe.options.model_copy(update={"quantize": None}))
    with torch.device("meta"):
        network = plain.model()
    layers = dict(network.named_modules())
    merged = {}
    for name, stored, weight in _whole_weights(recipe, network, tensors):
        made = weight
        if name.endswith(".base_layer.weight"):
            turned = is_turned(layers[name.removesuffix(".weight")])
            place = name.removesuffix("base_layer.weight")
            made = _add(weight.T if turned else weight, place, tensors, recipe)
            made = made.T if turned else made
        merged[stored] = (made.to(torch.float16) if is_half else made).contiguous()
    save_file(merged, folder / "model.safetensors", metadata={"format": "pt"})
    _write_around(recipe, folder, dtype="float16" if is_half else None)


def _whole_weights(
    recipe: LoraRecipe, network: nn.Module, tensors: Mapping[str, Tensor]
) -> Iterator[tuple[str, str, Tensor]]:
    """The model's own weights: name in the network, name in the model, and as they are stored, or
    in a checkpoint where they were trained or drawn."""
    from safetensors import safe_open

    is_random = recipe.options.weights == "random"
    placed = {} if is_random else place_weights(recipe.base, network)
    done = set()
    for name, tensor in network.state_dict(keep_vars=True).items():
        stored = placed[name].name if name in placed else stored_name(name)
        if peft_name(name) is not None or stored is None or id(tensor) in done:
            continue
        done.add(id(tensor))  # what is tied is in a file once
        trained = name.replace(".original_module.", f".modules_to_save.{ADAPTER}.")
        if name not in placed:
            yield name, stored, tensors[trained]
            continue
        with safe_open(placed[name].file, framework="pt") as opened:
            weight = opened.get_tensor(stored)
        yield name, stored, tensors[trained].to(weight.dtype) if trained in tensors else weight


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
    processor = open_processor(recipe.base, recipe.config)
    if processor is not None:
        save_tokenizer(processor, folder)
    save_tokenizer(recipe.tokenizer, folder)  # after the processor's own, which lacks added tokens
    how = recipe.base.folder / "generation_config.json"
    if how.is_file():
        shutil.copyfile(how, folder / how.name)
