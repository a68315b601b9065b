"""Models of transformers that embed texts and pictures: from a folder or from the hub.

safetensors where there are any; older repositories have .bin files, which are read without running
what is in them (`weights_only`). No code of the model's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from phalanx.recipe import Finding, UserError

_FILES = ["*.json", "*.safetensors", "*.model", "*.txt"]
_OLD_FILES = [*_FILES, "pytorch_model*.bin"]


def load_text_model(name: str, key: str) -> tuple[Any, Any]:
    """A model and its tokenizer."""
    with _told(name, key):
        import transformers

        folder = _folder(name)
        model = transformers.AutoModel.from_pretrained(folder, weights_only=True).eval()
        return model, transformers.AutoTokenizer.from_pretrained(folder)


def load_vision_model(name: str, key: str) -> tuple[Any, dict[str, Any]]:
    """A model, of one of texts and pictures the half that sees, and how its pictures are prepared.
    That is read here: the classes of transformers for it need torchvision."""
    with _told(name, key):
        import transformers

        folder = _folder(name)
        model = transformers.AutoModel.from_pretrained(folder, weights_only=True).eval()
        file = folder / "preprocessor_config.json"
        prepared: Any = json.loads(file.read_text(encoding="utf-8"))
        return getattr(model, "vision_model", model), dict(prepared)


def _folder(name: str) -> Path:
    """Where a model lies: a folder, the hub's cache, or the hub's files once they are fetched."""
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub import HfApi, constants, snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=_OLD_FILES, local_files_only=True))
    except OSError:
        if constants.HF_HUB_OFFLINE:
            raise
    # Asked once: downloading would try for a minute where there is no network.
    there = [file.rfilename for file in HfApi().model_info(name, timeout=10).siblings or []]
    is_new = any(file.endswith(".safetensors") for file in there)
    return Path(snapshot_download(name, allow_patterns=_FILES if is_new else _OLD_FILES))


@contextmanager
def _told(name: str, key: str) -> Iterator[None]:
    """What goes wrong with a model, as a Finding."""
    try:
        import transformers  # noqa: F401
    except ImportError as error:
        raise UserError(_no_transformers(name, key)) from error
    try:
        yield
    except Exception as error:  # of files, networks and transformers' own making
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
        why=f"{key} = {name}: a folder with config.json and weights, or a name of the hub",
        fix=f"on a machine with network: huggingface-cli download {name}",
    )
