"""Weights and optimizer state to and from safetensors files. No pickle on the load path."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError  # what torch.load raises when it refuses a file
from typing import Any

import torch

from phalanx.engine.ema import WeightAverage
from phalanx.engine.process import Process
from phalanx.engine.shards import Shard, find_aliases
from phalanx.engine.strategies.base import Strategy
from phalanx.engine.tensor_file import TensorFile, write_tensors
from phalanx.errors import Finding, UserError
from phalanx.run.checkpoints import STATE_FILE, SavedCheckpoint, checkpoint_name, new_checkpoint
from phalanx.run.directory import sync_folder, write_atomic

MODEL_FILE = "model.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
EMA_FILE = f"ema/{MODEL_FILE}"


def save_checkpoint(
    folder: Path,
    *,
    strategy: Strategy,
    state: dict[str, Any],
    average: WeightAverage | None = None,
    add_files: Callable[[Path], None] = lambda folder: None,
) -> Path:
    """Write a checkpoint. Every rank calls this under a sharded strategy, otherwise one; that one,
    or the first, calls `add_files` before the checksums are made."""
    process = strategy.process if strategy.is_sharded else None
    step = int(state["step"])
    aliases = find_aliases(strategy.model)
    optimizer = strategy.optimizer_state()
    with _new_folder(folder, step, process) as temporary:
        write_tensors(temporary / MODEL_FILE, _without(strategy.model_state(), aliases), process)
        if average is not None:
            path = temporary / EMA_FILE
            write_tensors(path, _without(average.shards(), aliases), process)
            sync_folder(path.parent)
        write_tensors(temporary / OPTIMIZER_FILE, optimizer.tensors, process)
        record = {
            **state,
            "schema_version": 1,
            "aliases": aliases,
            "optimizer": optimizer.numbers,
            "scaler": strategy.precision.scaler.state_dict(),
            "ema": average.record() if average is not None else None,
        }
        if strategy.process.is_first or process is None:
            write_atomic(temporary / STATE_FILE, json.dumps(record, indent=2))
            add_files(temporary)
    return folder / checkpoint_name(step)


@contextmanager
def _new_folder(folder: Path, step: int, process: Process | None) -> Iterator[Path]:
    """A folder that becomes the checkpoint once every rank has written its part of it."""
    if process is None:
        with new_checkpoint(folder, step) as temporary:
            yield temporary
    elif process.is_first:
        with new_checkpoint(folder, step) as temporary:
            process.agree_text(str(temporary))
            yield temporary
            process.barrier()
    else:
        yield Path(process.agree_text(""))
        process.barrier()


def load_checkpoint(saved: SavedCheckpoint, strategy: Strategy) -> None:
    """Put a checkpoint's weights, optimizer and scaler state in place."""
    _read_model(saved, MODEL_FILE, strategy.model_state())
    strategy.load_optimizer(TensorFile(saved.path / OPTIMIZER_FILE), saved.state["optimizer"])
    strategy.weights_changed()
    if saved.state["scaler"]:
        strategy.precision.scaler.load_state_dict(saved.state["scaler"])


def load_average(saved: SavedCheckpoint, average: WeightAverage) -> None:
    """Put a checkpoint's average of the weights in place."""
    _read_model(saved, EMA_FILE, average.averages())
    average.load(saved.state["ema"])


def _read_model(saved: SavedCheckpoint, name: str, shards: Mapping[str, Shard]) -> None:
    file, aliases = TensorFile(saved.path / name), saved.state["aliases"]
    for tensor, shard in shards.items():
        file.read_into(aliases.get(tensor, tensor), shard)


def _without(shards: Mapping[str, Shard], aliases: Mapping[str, str]) -> dict[str, Shard]:
    return {name: shard for name, shard in shards.items() if name not in aliases}


def load_initial_weights(strategy: Strategy, source: Path) -> None:
    """Start from a run, a checkpoint, a .safetensors or a .pt file: weights only."""
    path = _weights_file(source)
    try:
        read = _open_safetensors(path) if path.suffix == ".safetensors" else _open_torch(path)
        _take_weights(strategy, read)
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


def _open_safetensors(path: Path) -> dict[str, Any]:
    """For each tensor of a file a function that copies a range of it."""
    file = TensorFile(path)

    def reader(name: str) -> Any:
        return lambda shard: file.read_into(name, shard)

    return {name: reader(name) for name in file.names}


def _open_torch(path: Path) -> dict[str, Any]:
    weights = torch.load(path, map_location="cpu", weights_only=True, mmap=_can_map(path))
    weights = dict(weights.get("state_dict", weights.get("model", weights)))

    def reader(name: str, whole: torch.Tensor) -> Any:
        def read(shard: Shard) -> None:
            if tuple(whole.shape) != shard.shape:
                raise ValueError(f"`{name}` is {list(whole.shape)}, here {list(shard.shape)}")
            shard.copy_from(whole)

        return read

    return {name: reader(name, tensor) for name, tensor in weights.items()}


def _can_map(path: Path) -> bool:
    """Whether torch can map the file instead of reading it: not the format before torch 1.6."""
    with path.open("rb") as file:
        return file.read(2) == b"PK"


def _take_weights(strategy: Strategy, read: dict[str, Any]) -> None:
    shards = strategy.model_state()
    for alias, name in find_aliases(strategy.model).items():
        # Tied weights may be stored once, under either name.
        if alias not in read and name in read:
            read[alias] = read[name]
        elif name not in read and alias in read:
            read[name] = read[alias]
    missing = [name for name in shards if name not in read]
    extra = [name for name in read if name not in shards]
    if missing or extra:
        raise ValueError(f"missing: {missing[:5]}; unknown to the model: {extra[:5]}")
    for name, shard in shards.items():
        read[name](shard)
    strategy.weights_changed()


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:600]}"


def _weights_file(source: Path) -> Path:
    for candidate in (source, source / MODEL_FILE, source / "checkpoints" / "best" / MODEL_FILE):
        if candidate.is_file():
            return candidate
    return source / "checkpoints" / "latest" / MODEL_FILE
