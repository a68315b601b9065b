"""The network that is trained: a pretrained model whose linear layers have adapters beside them."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from phalanx.recipe import Finding, UserError, attend_causally
from phalanx.recipes.lora.nf4 import Nf4Linear, can_pack
from phalanx.recipes.lora.options import LoraOptions

ADAPTER = "default"  # the name that peft gives the only one


def network_class(config: Any) -> Any:
    """The class of transformers that makes text with a model of this kind."""
    import transformers

    is_multimodal = any(hasattr(config, name) for name in ("vision_config", "audio_config"))
    if getattr(config, "is_encoder_decoder", False):
        names = ["AutoModelForSeq2SeqLM", "AutoModelForSpeechSeq2Seq"]
    elif is_multimodal:
        names = ["AutoModelForImageTextToText", "AutoModelForMultimodalLM", "AutoModelForCausalLM"]
    else:
        names = ["AutoModelForCausalLM"]
    for name in names:
        auto = getattr(transformers, name, None)
        if auto is not None and type(config) in auto._model_mapping:
            return auto
    # Speech models that write text are registered under their encoders' head in some versions.
    raise UserError(
        Finding(
            slug="model-kind",
            what=f"a `{config.model_type}` model does not write text",
            why=f"it is in none of {', '.join(names)} of transformers {transformers.__version__}",
            fix="model=a causal or sequence-to-sequence language model",
        )
    )


def make_network(config: Any, options: LoraOptions, *, tokens: int | None) -> nn.Module:
    """With adapters, and with base weights that are still to be read, or random ones. `tokens`: how
    many the vocabulary has with those that are added."""
    from peft import inject_adapter_in_model
    from transformers.initialization import no_init_weights

    is_random = options.weights == "random"
    # In fp32, whatever type the model's files are in: adapters take the type of the weights beside
    # them, and what learns needs its fp32 bits. The engine holds what is frozen narrow. The config
    # is a copy because transformers writes the type into it, and it is exported as it was.
    with nullcontext() if is_random else no_init_weights():
        network = network_class(config).from_config(copy.deepcopy(config), dtype=torch.float32)
    if not is_random:
        network.tie_weights()
    if options.add_tokens and tokens is not None and tokens > _vocabulary(config):
        network.resize_token_embeddings(tokens, mean_resizing=False)
    if not getattr(config, "is_encoder_decoder", False):
        attend_causally(network)
    if options.quantize is not None:
        _quantize(network)
    network = inject_adapter_in_model(adapter_config(network, options), network)
    layers: list[Any] = [module for module in network.modules() if hasattr(module, "lora_A")]
    for layer in layers:
        # Autocast looks after the input's type; peft would copy it into the adapters' own first.
        layer.cast_input_dtype_enabled = False
    return network


def _quantize(network: nn.Module) -> None:
    """All linear layers but the head, still without values."""
    for name, layer in list(_linear_layers(network)):
        if can_pack(layer):
            parent, _, last = name.rpartition(".")
            setattr(network.get_submodule(parent), last, Nf4Linear(layer))  # type: ignore[arg-type]


def adapter_config(network: nn.Module, options: LoraOptions) -> Any:
    """What peft makes adapters from, and reads beside them."""
    from peft import LoraConfig

    config: Any = network.config
    is_seq2seq = getattr(config, "is_encoder_decoder", False)
    is_hearing = getattr(network, "main_input_name", "input_ids") != "input_ids"
    is_tied = bool(getattr(config.get_text_config(), "tie_word_embeddings", False))
    saved = _embeddings(network, is_tied=is_tied) if options.add_tokens else None
    return LoraConfig(
        # Around a model that hears, peft's classes for text would ask for tokens.
        task_type=None if is_hearing else "SEQ_2_SEQ_LM" if is_seq2seq else "CAUSAL_LM",
        r=options.r,
        lora_alpha=_plain(options.alpha),
        lora_dropout=options.dropout,
        target_modules=target_names(network, options),
        use_rslora=options.rslora,
        use_dora=options.dora,
        modules_to_save=saved,
        ensure_weight_tying=bool(saved) and is_tied,
    )


def scaling(options: LoraOptions) -> float:
    return options.alpha / (math.sqrt(options.r) if options.rslora else options.r)


def target_names(network: nn.Module, options: LoraOptions) -> list[str]:
    """The last parts of the names of the layers that get adapters."""
    there = dict(_linear_layers(network))
    if isinstance(options.targets, list):
        wanted = options.targets
        unknown = [w for w in wanted if not any(n.split(".")[-1] == w for n in there)]
        if unknown:
            raise UserError(
                Finding(
                    slug="unknown-targets",
                    what=f"the model has no linear layer called {', '.join(unknown)}",
                    why=f"options.targets = {wanted}; there are {', '.join(_last(there))}",
                    fix=f"targets={_last(there)[:2]}".replace("'", ""),
                )
            )
        return sorted(wanted)
    if options.targets == "attention":
        attention = [n for n in there if "attn" in n.lower() or "attention" in n.lower()] or there
        others = [n for n in there if n not in attention]
        # Whole names where layers elsewhere have the same last part, as in GPT-2.
        is_clear = not set(_last(attention)) & set(_last(others))
        return _last(attention) if is_clear else sorted(attention)
    return _last(there)


def check_layers(config: Any, options: LoraOptions) -> list[Finding]:
    """That the model is of a kind that writes text, and has the layers that options name."""
    try:
        kind = network_class(config)
        if isinstance(options.targets, list):
            with torch.device("meta"):
                target_names(kind.from_config(config), options)
    except UserError as error:
        return error.findings
    return []


def _last(names: Any) -> list[str]:
    return sorted({name.split(".")[-1] for name in names})


def _linear_layers(network: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """All but the head."""
    from transformers.pytorch_utils import Conv1D

    head = network.get_output_embeddings()  # type: ignore[operator]
    for name, module in network.named_modules():
        if isinstance(module, (nn.Linear, Conv1D)) and module is not head:
            yield name.removesuffix(".base_layer"), module


def is_turned(layer: nn.Module) -> bool:
    """Whether a layer keeps its weights the other way around, as those of GPT-2 do."""
    from transformers.pytorch_utils import Conv1D

    return isinstance(layer, Conv1D)


def _embeddings(network: Any, *, is_tied: bool) -> list[str]:
    """Names of the modules that grow with the vocabulary."""
    parts = [network.get_input_embeddings()]
    if not is_tied:
        parts.append(network.get_output_embeddings())
    names = {id(module): name for name, module in network.named_modules()}
    return [names[id(part)].split(".")[-1] for part in parts if part is not None]


def _vocabulary(config: Any) -> int:
    return int(config.get_text_config().vocab_size)


def _plain(number: float) -> Any:
    """An integer where it is one: peft's own files have integers."""
    return int(number) if number == int(number) else number


def stored_name(name: str) -> str | None:
    """What a tensor of the network is called in the pretrained model; None: it is not there."""
    if ".lora_" in name or f".modules_to_save.{ADAPTER}." in name:
        return None
    return name.replace(".base_layer.", ".").replace(".original_module.", ".")


def peft_name(name: str) -> str | None:
    """What a tensor of the network is called in an adapter file; None: it is not of the adapter."""
    if f".modules_to_save.{ADAPTER}." in name:
        return "base_model.model." + name.replace(f".modules_to_save.{ADAPTER}", "")
    if ".lora_" not in name:
        return None
    return "base_model.model." + name.replace(f".{ADAPTER}", "").replace(
        "lora_magnitude_vector.weight", "lora_magnitude_vector"
    )
