"""Weights from a .pt of Ultralytics, without running what may be in it.

Such a file is a pickled model. It is read once by torch's `weights_only` reader, which makes known
classes of Ultralytics and torch and nothing else, and kept as safetensors with its structure: from
then on nobody opens the .pt.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from phalanx.recipe import Finding, Stored, UserError, cache_folder, new_file
from phalanx.recipes.detection.library import ultralytics

_RELEASES = "https://github.com/ultralytics/assets/releases/download/v8.4.0"


@dataclass(frozen=True)
class Pretrained:
    """What a .pt holds."""

    file: Path
    """The same weights as safetensors."""
    structure: dict[str, Any]
    names: dict[int, str]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        with safe_open(self.file, framework="pt") as stored:
            names = list(stored.keys())
            return {name: tuple(stored.get_slice(name).get_shape()) for name in names}


@functools.cache
def open_pretrained(path: Path) -> Pretrained:
    """The weights and the structure of a .pt, converted once for each content."""
    if not path.is_file():
        raise UserError(_not_there(path))
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**22):
            digest.update(block)
    kept = cache_folder("detection") / f"weights-{digest.hexdigest()[:32]}.safetensors"
    if not kept.exists():
        _convert(path, kept)
    with safe_open(kept, framework="pt") as stored:
        about = json.loads(stored.metadata()["phalanx"])
    names = {int(number): name for number, name in about["names"].items()}
    return Pretrained(kept, about["structure"], names)


def _convert(path: Path, kept: Path) -> None:
    model = _read(path)
    tensors = {
        n: t.float().contiguous() if t.is_floating_point() else t.contiguous()
        for n, t in model.state_dict().items()
    }
    raw = getattr(model, "names", None) or {}
    names = dict(enumerate(raw)) if isinstance(raw, list) else dict(raw)
    about = {"structure": getattr(model, "yaml", None), "names": names}
    with new_file(kept) as making:
        save_file(tensors, making, metadata={"phalanx": json.dumps(about)})


def _read(path: Path) -> nn.Module:
    ultralytics()
    from ultralytics.nn.tasks import torch_safe_load

    try:
        content, _ = torch_safe_load(path, safe_only=True)
    except Exception as error:  # whatever a damaged file leads the reader to
        raise UserError(_not_read(path, error)) from error
    model = (content.get("ema") or content.get("model")) if isinstance(content, dict) else None
    if not isinstance(model, nn.Module) or not isinstance(getattr(model, "yaml", None), dict):
        raise UserError(_not_read(path, TypeError("it holds no model of Ultralytics")))
    return model


def place_weights(pretrained: Pretrained, network: nn.Module) -> Mapping[str, Stored]:
    """Where each tensor of the model is read from: those of the same name and shape."""
    shapes = pretrained.shapes()
    return {
        name: Stored(pretrained.file, name)
        for name, tensor in _tensors(network).items()
        if shapes.get(name) == tuple(tensor.shape)
    }


def _tensors(network: nn.Module) -> dict[str, Tensor]:
    """Without the values of the bins, which are the same in every model: what is read from a file
    and does not learn is in no checkpoint, and a checkpoint should do without the file."""
    return {name: t for name, t in network.state_dict().items() if ".dfl." not in name}


def weights_note(pretrained: Pretrained, network: nn.Module, path: str) -> list[Finding]:
    """What of the pretrained weights is not taken, and why."""
    tensors = _tensors(network)
    missing = [name for name in tensors if name not in place_weights(pretrained, network)]
    if not missing:
        return []
    classes = len(getattr(network, "names", {}))
    return [
        Finding(
            slug="detection-weights",
            what=f"{len(missing)} of {len(tensors)} tensors begin with fresh weights: "
            f"{', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''}",
            why=f"options.model = {path} knows {len(pretrained.names)} classes, the data has "
            f"{classes}: layers whose shape follows the classes are not taken over",
            fix="nothing; they are learned",
            severity="note",
        )
    ]


def _not_there(path: Path) -> Finding:
    name = path.name
    return Finding(
        slug="detection-model",
        what=f"`{path}` is not there",
        why=f"options.model = {path}; nothing is downloaded by itself",
        fix=f"curl -LO {_RELEASES}/{name}, or model={path.stem} for fresh weights",
    )


def _not_read(path: Path, error: Exception) -> Finding:
    text = " ".join(str(error).split())[:300]
    return Finding(
        slug="detection-weights-unsafe",
        what=f"`{path}` is not read: it is damaged, or holds more than a model",
        why=f"options.model = {path}; only classes of Ultralytics and torch are made of what is in "
        f"such a file, no code of it is run: {text}",
        fix="take the file from where it was published, or model=yolo11n for fresh weights",
    )
