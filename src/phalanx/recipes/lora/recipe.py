"""LoRA fine-tuning of a language model: a pretrained model, rows of text, small adapters.

The default needs nothing prepared: SmolLM2-135M-Instruct learns to write down orders as codes.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.recipe import (
    Batch,
    Data,
    Exported,
    Exporting,
    ExportingGraphs,
    Finding,
    PretrainedWeights,
    Recipe,
    Sample,
    Showing,
    Split,
    Stored,
    Term,
    UserError,
)
from phalanx.recipes.lora.base import (
    Base,
    find_base,
    open_config,
    open_processor,
    open_tokenizer,
    weight_findings,
)
from phalanx.recipes.lora.check import check_data, check_sources
from phalanx.recipes.lora.data import open_data, token_count
from phalanx.recipes.lora.options import LoraOptions
from phalanx.recipes.lora.tokens import IGNORED

_PACKAGES = ("transformers", "peft")


class LoraRecipe(Recipe, PretrainedWeights, Exporting, ExportingGraphs, Showing):
    """A pretrained model whose linear layers learn through small adapters beside them."""

    Options = LoraOptions
    options: LoraOptions
    export_forms: ClassVar[Mapping[str, str]] = {
        "adapter": "what PEFT reads: adapter_config.json and adapter_model.safetensors",
        "merged": "a model for transformers with the adapters added to its weights",
        "gguf-ready": "the same in fp16, as llama.cpp's convert_hf_to_gguf.py takes it",
    }

    @functools.cached_property
    def base(self) -> Base:
        return find_base(self.options.model)

    @functools.cached_property
    def config(self) -> Any:
        return open_config(self.base)

    @functools.cached_property
    def tokenizer(self) -> Any:
        return open_tokenizer(self.base, tuple(self.options.add_tokens))

    @property
    def is_seq2seq(self) -> bool:
        return bool(getattr(self.config, "is_encoder_decoder", False))

    def model(self) -> nn.Module:
        from phalanx.recipes.lora.network import make_network

        tokens = len(self.tokenizer) if self.options.add_tokens else None
        return make_network(self.config, self.options, tokens=tokens)

    def weights(self) -> Mapping[str, Stored]:
        if self.options.weights == "random":
            return {}
        if found := weight_findings(self.base):
            raise UserError(found)
        from phalanx.recipes.lora.pretrained import place_weights

        with torch.device("meta"):
            network = self.model()
        return place_weights(self.base, network)

    def check_weights(self) -> list[Finding]:
        return [] if self.options.weights == "random" else weight_findings(self.base)

    def data(self, split: Split) -> Data:
        return open_data(
            split,
            self.options,
            self.tokenizer,
            context=self._context,
            processor=open_processor(self.base, self.config),
            is_seq2seq=self.is_seq2seq,
        )

    @property
    def _context(self) -> int | None:
        return getattr(self.config.get_text_config(), "max_position_embeddings", None)

    def weight(self, batch: Batch) -> float:
        return float(token_count(batch, is_seq2seq=self.is_seq2seq))

    def loss(self, model: nn.Module, batch: Batch, keys: Tensor) -> Mapping[str, Term]:
        logits, wanted = self._predict(model, batch)
        return {"cross_entropy": Term(_sum_losses(logits, wanted), (wanted != IGNORED).sum())}

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Any]:
        logits, wanted = self._predict(model, batch)
        counts = wanted != IGNORED
        right = (logits.argmax(-1) == wanted) | ~counts
        has_answer = counts.any(1)
        return {
            "loss": _sum_losses(logits, wanted),
            "tokens": counts.sum(),
            "right_tokens": (right & counts).sum(),
            # Greedy decoding writes the wanted answer exactly when each of its tokens is the most
            # likely one after those before it: one forward tells, without writing.
            "right_answers": (right.all(1) & has_answer).sum(),
            "answers": has_answer.sum(),
        }

    def metrics(self, sums: Mapping[str, float]) -> Mapping[str, float]:
        tokens, answers = max(sums["tokens"], 1.0), max(sums["answers"], 1.0)
        return {
            "loss": sums["loss"] / tokens,
            "token_accuracy": sums["right_tokens"] / tokens,
            "exact_match": sums["right_answers"] / answers,
        }

    def _predict(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Scores, and for each the token that is wanted there."""
        given = {k: v for k, v in batch.items() if k not in ("labels", "segments")}
        labels: Tensor = batch["labels"]
        if self.is_seq2seq:
            # The decoder is given what it should have written so far, after a token to begin with.
            start = self.config.decoder_start_token_id
            before = F.pad(labels, (1, 0), value=start)[:, :-1]
            pad = self.config.pad_token_id or 0
            given["decoder_input_ids"] = before.masked_fill(before == IGNORED, pad)
            return model(**given, use_cache=False).logits, labels
        if "segments" in batch:
            given["attention_mask"] = _packed_mask(batch["segments"])
        # The labels move, not the logits, which are the largest tensor of the step.
        wanted = F.pad(labels, (0, 1), value=IGNORED)[:, 1:]
        return model(**given, use_cache=False).logits, wanted

    def samples(self, model: nn.Module) -> list[Sample]:
        from phalanx.recipes.lora.completion import complete

        if self.options.completions == 0:
            return []
        data = self._shown_data
        return complete(model, data, self.tokenizer, self.options, is_seq2seq=self.is_seq2seq)

    @functools.cached_property
    def _shown_data(self) -> Data:
        """Opened once for all evaluations: that tokenizes all rows."""
        return self.data("test")

    def export(self, tensors: Mapping[str, Tensor], folder: Path, form: str) -> None:
        from phalanx.recipes.lora.exporting import export_adapter, export_merged

        if form in ("checkpoint", "final", "adapter"):
            export_adapter(self, tensors, folder, is_whole=form != "checkpoint")
        is_merged = form == "final" and self.options.merged
        if is_merged or form in ("merged", "gguf-ready"):
            export_merged(self, tensors, folder, is_half=form == "gguf-ready")

    def exported(self, model: nn.Module) -> Exported:
        from phalanx.recipes.lora.forward import exported_forward

        return exported_forward(self, model)

    def export_metadata(self) -> Mapping[str, Any]:
        base = self.options.model or self.base.folder.name
        return {"preprocessing": {"tokenizer": base, "padding": "right"}}

    def check(self) -> list[Finding]:
        is_gguf = (self.options.model or ".gguf").endswith(".gguf")
        needed = (*_PACKAGES, "gguf") if is_gguf else _PACKAGES
        absent = [name for name in needed if find_spec(name) is None]
        if absent:
            return [
                Finding(
                    slug="missing-extra",
                    what=f"the lora recipe needs {', '.join(absent)}, not installed",
                    why="they come with the extra `lora`",
                    fix="pip install 'phalanx[lora]'",
                )
            ]
        from phalanx.recipes.lora.network import check_layers

        wrong = None if self.options.quantize is None else _no_quantizing(self.options)
        findings = [wrong] if wrong else []
        try:
            processor, tokenizer = open_processor(self.base, self.config), self.tokenizer
        except UserError as error:
            return [*findings, *error.findings, *check_sources(self.options)]
        about_data = check_data(
            self.options,
            tokenizer,
            context=self._context,
            processor=processor,
            is_seq2seq=self.is_seq2seq,
        )
        return [*findings, *check_layers(self.config, self.options), *about_data]


def _sum_losses(logits: Tensor, wanted: Tensor) -> Tensor:
    """Over the tokens that are wanted, in fp32 at least: fp64 stays what it is."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    scores = logits.flatten(0, 1).to(wide)
    return F.cross_entropy(scores, wanted.flatten(), ignore_index=IGNORED, reduction="sum")


def _packed_mask(segments: Tensor) -> Tensor:
    """Each token sees those before it of its own sample; padding sees itself, so that no row of the
    mask is empty."""
    length = segments.shape[1]
    is_same = segments[:, None, :, None] == segments[:, None, None, :]
    is_before = torch.ones(length, length, dtype=torch.bool, device=segments.device).tril()
    return is_same & is_before


def _no_quantizing(options: LoraOptions) -> Finding | None:
    """What quantized weights do not go together with."""
    other = "dora=true" if options.dora else "weights=random"
    if not options.dora and options.weights == "pretrained":
        return None
    return Finding(
        slug="no-quantizing",
        what=f"`quantize: 4bit` does not go together with `{other}`",
        why="DoRA measures the weights as they are, and random ones are not worth packing",
        fix=f"quantize=null, or without {other}",
    )
