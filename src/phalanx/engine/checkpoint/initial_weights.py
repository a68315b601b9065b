"""`init_from`: the weights of a run, a checkpoint or a file as the first ones of a run."""

from __future__ import annotations

import json
from pathlib import Path
from pickle import UnpicklingError  # what torch.load raises when it refuses a file
from typing import Any

import torch
from torch import nn

from phalanx.engine.checkpoint.pretrained import (
    ELSEWHERE,
    Pretrained,
    Read,
    first_line,
    reader,
    take_weights,
)
from phalanx.engine.model.shards import Shard, find_aliases
from phalanx.engine.model.tensor_file import TensorFile
from phalanx.engine.strategies.base import Strategy
from phalanx.errors import Finding, UserError
from phalanx.recipe.interface import Recipe
from phalanx.recipe.pretrained import PretrainedWeights
from phalanx.run.checkpoints import MODEL_FILE, STATE_FILE

_SHOWN = 5


def load_initial_weights(
    strategy: Strategy, source: Path, pretrained: Pretrained | None = None
) -> list[Finding]:
    """Start from a run, a checkpoint, a .safetensors or a .pt file: weights only. What is not in
    there and is pretrained stays as it is; returns what there is to say about that."""
    path = _weights_file(source)
    pretrained = pretrained or Pretrained()
    try:
        read = _open_safetensors(path) if path.suffix == ".safetensors" else _open_torch(path)
        shards = strategy.model_state()
        _name_ties(strategy.model, read)
        given = pretrained.covered(strategy.model) if pretrained.stored else set()
        missing = [name for name in shards if name not in read and name not in given]
        extra = [name for name in read if name not in shards]
        if missing or extra:
            raise ValueError(f"missing: {missing[:_SHOWN]}; unknown to the model: {extra[:_SHOWN]}")
        take_weights(strategy, shards, read)
    except UnpicklingError as error:
        raise UserError(unsafe_file(path, error)) from error
    except Exception as error:
        raise UserError(
            Finding(
                slug="init-weights",
                what=f"the weights in `{path}` do not load into this model",
                why=first_line(error),
                fix="init_from, or the file given: weights of the same recipe and options",
            )
        ) from error
    return _other_base(path, pretrained, strategy.model)


def plain_file(recipe: Recipe, path: Path) -> Path:
    """The file, or where it is in a form of another tool the safetensors file that the recipe makes
    of it."""
    is_plain = path.suffix == ".safetensors" or not path.is_file()
    if is_plain or not isinstance(recipe, PretrainedWeights):
        return path
    return recipe.weights_file(path) or path


def unsafe_file(path: Path, error: Exception) -> Finding:
    """A file that would have to be executed to be read."""
    return Finding(
        slug="init-unsafe",
        what=f"`{path}` holds more than weights and is not opened",
        why=first_line(error),
        fix="save the weights alone: safetensors.torch.save_file(model.state_dict(), path)",
    )


def _other_base(path: Path, pretrained: Pretrained, model: nn.Module) -> list[Finding]:
    state = checkpoint_state(path)
    return [
        Finding(
            slug="init-base",
            what=f"`{path}` was trained on other frozen weights than these",
            why=finding.why,
            fix="nothing, if that is what you want",
            severity="warning",
        )
        for finding in pretrained.changes(state.get(ELSEWHERE), model)
    ]


def checkpoint_state(weights: Path) -> dict[str, Any]:
    """What the checkpoint says that a file of weights, or of their average, lies in; empty where it
    lies in none."""
    for folder in (weights.parent, weights.parent.parent):
        try:
            state: dict[str, Any] = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
            return state
        except (OSError, ValueError):
            continue
    return {}


def _name_ties(model: nn.Module, read: dict[str, Read]) -> None:
    """Tied weights may be stored once, under either name."""
    for alias, name in find_aliases(model).items():
        if alias not in read and name in read:
            read[alias] = read[name]
        elif name not in read and alias in read:
            read[name] = read[alias]


def _open_safetensors(path: Path) -> dict[str, Read]:
    file = TensorFile(path)
    return {name: reader(file, name) for name in file.names}


def read_torch_file(path: Path) -> dict[str, torch.Tensor]:
    """The weights in a .pt file, by name; nothing in it is executed."""
    weights = torch.load(path, map_location="cpu", weights_only=True, mmap=_can_map(path))
    return dict(weights.get("state_dict", weights.get("model", weights)))


def _open_torch(path: Path) -> dict[str, Read]:
    weights = read_torch_file(path)

    def copier(name: str, whole: torch.Tensor) -> Read:
        def read(shard: Shard) -> None:
            if tuple(whole.shape) != shard.shape:
                raise ValueError(f"`{name}` is {list(whole.shape)}, here {list(shard.shape)}")
            shard.copy_from(whole)

        return read

    return {name: copier(name, tensor) for name, tensor in weights.items()}


def _can_map(path: Path) -> bool:
    """Whether torch can map the file instead of reading it: not the format before torch 1.6."""
    with path.open("rb") as file:
        return file.read(2) == b"PK"


def _weights_file(source: Path) -> Path:
    for candidate in (source, source / MODEL_FILE, source / "checkpoints" / "best" / MODEL_FILE):
        if candidate.is_file():
            return candidate
    return source / "checkpoints" / "latest" / MODEL_FILE
