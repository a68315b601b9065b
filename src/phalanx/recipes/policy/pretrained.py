"""Models of transformers that embed texts and pictures: from a folder or from the hub."""

from __future__ import annotations

from typing import Any, Literal

from phalanx.recipe import Finding, UserError

Kind = Literal["text", "vision"]


def load_pretrained(name: str, key: str, *, kind: Kind) -> tuple[Any, Any]:
    """The model and what prepares its input; safetensors only, no code of the model's own."""
    try:
        import transformers
    except ImportError as error:
        raise UserError(_no_transformers(name, key)) from error
    prepare: Any = transformers.AutoTokenizer if kind == "text" else transformers.AutoImageProcessor
    try:
        model = transformers.AutoModel.from_pretrained(name, use_safetensors=True).eval()
        if kind == "vision":
            # Of a model of texts and pictures, the half that sees.
            model = getattr(model, "vision_model", model)
        return model, prepare.from_pretrained(name)
    except (OSError, ValueError, KeyError, ImportError) as error:
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
