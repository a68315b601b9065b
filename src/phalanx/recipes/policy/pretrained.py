"""Models of transformers that embed texts and pictures: from a folder or from the hub. safetensors
only, and no code of the model's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from phalanx.recipe import Finding, UserError


def load_text_model(name: str, key: str) -> tuple[Any, Any]:
    """A model and its tokenizer."""
    with _told(name, key):
        import transformers

        model = transformers.AutoModel.from_pretrained(name, use_safetensors=True).eval()
        return model, transformers.AutoTokenizer.from_pretrained(name)


def load_vision_model(name: str, key: str) -> tuple[Any, dict[str, Any]]:
    """A model, of one of texts and pictures the half that sees, and how its pictures are prepared.
    That is read here: the classes of transformers for it need torchvision."""
    with _told(name, key):
        import transformers
        from transformers.utils.hub import cached_file

        model = transformers.AutoModel.from_pretrained(name, use_safetensors=True).eval()
        file = cached_file(name, "preprocessor_config.json")
        prepared: Any = json.loads(Path(str(file)).read_text(encoding="utf-8"))
        return getattr(model, "vision_model", model), dict(prepared)


@contextmanager
def _told(name: str, key: str) -> Iterator[None]:
    """What goes wrong with a model, as a Finding."""
    try:
        import transformers  # noqa: F401
    except ImportError as error:
        raise UserError(_no_transformers(name, key)) from error
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise UserError(_not_loaded(name, key, error)) from error


def _no_transformers(name: str, key: str) -> Finding:
    return Finding(
        slug="missing-extra",
        what=f"`{name}` is a model of transformers, which is not installed",
        why=f"{key} names it, or nothing does and it is the default; extra `policy`",
        fix="pip install 'phalanx[policy]'",
    )


def _not_loaded(name: str, key: str, error: Exception) -> Finding:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return Finding(
        slug="policy-encoder",
        what=f"`{name}` cannot be loaded: {lines[0][:200] if lines else type(error).__name__}",
        why=f"{key} = {name}: a folder with config.json and safetensors, or a name of the hub",
        fix=f"on a machine with network: huggingface-cli download {name}",
    )
