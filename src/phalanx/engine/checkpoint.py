"""Weights and optimizer state to and from safetensors files. No pickle on the load path."""

from __future__ import annotations

import json
from pathlib import Path
from pickle import UnpicklingError  # what torch.load raises when it refuses a file
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from phalanx.engine.ema import WeightAverage
from phalanx.engine.optimize import Optimizer
from phalanx.engine.precision import Precision
from phalanx.errors import Finding, UserError
from phalanx.run.checkpoints import STATE_FILE, SavedCheckpoint, new_checkpoint
from phalanx.run.directory import sync_folder, write_atomic

MODEL_FILE = "model.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
EMA_FILE = f"ema/{MODEL_FILE}"


def save_checkpoint(
    folder: Path,
    *,
    model: nn.Module,
    optimizer: Optimizer,
    precision: Precision,
    state: dict[str, Any],
    average: WeightAverage | None = None,
) -> Path:
    """Write a checkpoint of the whole model; one rank calls this."""
    step = int(state["step"])
    with new_checkpoint(folder, step) as temporary:
        aliases = save_weights(model, temporary / MODEL_FILE)
        if average is not None:
            path = temporary / EMA_FILE
            path.parent.mkdir()
            _save_tensors(average.tensors(), path, aliases)
            sync_folder(path.parent)
        tensors, numbers = _optimizer_state(model, optimizer)
        save_file(tensors, temporary / OPTIMIZER_FILE)
        record = {
            **state,
            "schema_version": 1,
            "aliases": aliases,
            "optimizer": numbers,
            "scaler": precision.scaler.state_dict(),
            "ema": average.record() if average is not None else None,
        }
        write_atomic(temporary / STATE_FILE, json.dumps(record, indent=2))
    return folder / f"checkpoint-{step}"


def load_checkpoint(
    saved: SavedCheckpoint, *, model: nn.Module, optimizer: Optimizer, precision: Precision
) -> None:
    """Put a checkpoint's weights, optimizer and scaler state in place."""
    model.load_state_dict(_load_tensors(saved, MODEL_FILE))
    _load_optimizer(
        model, optimizer, load_file(saved.path / OPTIMIZER_FILE), saved.state["optimizer"]
    )
    if saved.state["scaler"]:
        precision.scaler.load_state_dict(saved.state["scaler"])


def load_average(saved: SavedCheckpoint, average: WeightAverage) -> None:
    """Put a checkpoint's average of the weights in place."""
    average.load(_load_tensors(saved, EMA_FILE), saved.state["ema"])


def _load_tensors(saved: SavedCheckpoint, file: str) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = load_file(saved.path / file)
    for alias, name in saved.state["aliases"].items():
        tensors[alias] = tensors[name]
    return tensors


def save_weights(model: nn.Module, path: Path) -> dict[str, str]:
    """Write the model's weights; returns the names that share memory with another name, since
    safetensors stores a tensor once."""
    aliases = _aliases(model)
    _save_tensors(model.state_dict(), path, aliases)
    return aliases


def _save_tensors(tensors: dict[str, torch.Tensor], path: Path, aliases: dict[str, str]) -> None:
    stored = {
        name: tensor.detach().contiguous()
        for name, tensor in tensors.items()
        if name not in aliases
    }
    save_file(stored, path, metadata={"format": "pt"})


def _aliases(model: nn.Module) -> dict[str, str]:
    """Names of the state that share their memory with an earlier name."""
    aliases: dict[str, str] = {}
    seen: dict[tuple[Any, ...], str] = {}
    for name, tensor in model.state_dict().items():
        place = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() and place in seen:
            aliases[name] = seen[place]
        else:
            seen[place] = name
    return aliases


def _names(model: nn.Module) -> dict[int, str]:
    return {id(parameter): name for name, parameter in model.named_parameters()}


def _optimizer_state(
    model: nn.Module, optimizer: Optimizer
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Optimizer state by parameter name: tensors for safetensors, numbers for JSON."""
    names = _names(model)
    tensors: dict[str, torch.Tensor] = {}
    numbers: dict[str, Any] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            for key, value in optimizer.state.get(parameter, {}).items():
                name = f"{names[id(parameter)]}:{key}"
                if isinstance(value, torch.Tensor):
                    tensors[name] = value.detach().contiguous()
                else:
                    numbers[name] = value
    return tensors, numbers


def _load_optimizer(
    model: nn.Module,
    optimizer: Optimizer,
    tensors: dict[str, torch.Tensor],
    numbers: dict[str, Any],
) -> None:
    names = _names(model)
    by_name: dict[str, dict[str, Any]] = {}
    for full, value in {**tensors, **numbers}.items():
        name, _, key = full.rpartition(":")
        by_name.setdefault(name, {})[key] = value
    ordered = [names[id(p)] for group in optimizer.param_groups for p in group["params"]]
    record = optimizer.state_dict()
    record["state"] = {i: by_name[name] for i, name in enumerate(ordered) if name in by_name}
    optimizer.load_state_dict(record)


def load_initial_weights(model: nn.Module, source: Path) -> None:
    """Start from a run, a checkpoint, a .safetensors or a .pt file: weights only."""
    path = _weights_file(source)
    try:
        if path.suffix == ".safetensors":
            weights = load_file(path)
        else:
            weights = torch.load(path, map_location="cpu", weights_only=True)
            weights = dict(weights.get("state_dict", weights.get("model", weights)))
        for alias, name in _aliases(model).items():
            # Tied weights may be stored once, under either name.
            if alias not in weights and name in weights:
                weights[alias] = weights[name]
            elif name not in weights and alias in weights:
                weights[name] = weights[alias]
        model.load_state_dict(weights)
    except UnpicklingError as error:
        raise UserError(
            Finding(
                slug="init-unsafe",
                what=f"`{path}` holds more than weights and is not opened",
                why=_first_line(error),
                fix="save the weights alone: safetensors.torch.save_file(model.state_dict(), path)",
            )
        ) from error
    except Exception as error:
        raise UserError(
            Finding(
                slug="init-weights",
                what=f"the weights in `{path}` do not load into this model",
                why=_first_line(error),
                fix="init_from: a checkpoint of the same recipe and options",
            )
        ) from error


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:600]}"


def _weights_file(source: Path) -> Path:
    for candidate in (source, source / MODEL_FILE, source / "checkpoints" / "best" / MODEL_FILE):
        if candidate.is_file():
            return candidate
    return source / "checkpoints" / "latest" / MODEL_FILE
