"""Weights and optimizer state to and from safetensors files. No pickle on the load path."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from phalanx.engine.ema import WeightAverage
from phalanx.engine.pretrained import ELSEWHERE, Pretrained
from phalanx.engine.process import Process
from phalanx.engine.shards import Shard, find_aliases
from phalanx.engine.strategies.base import Strategy
from phalanx.engine.tensor_file import TensorFile, write_tensors
from phalanx.errors import UserError
from phalanx.run.checkpoints import (
    MODEL_FILE,
    STATE_FILE,
    SavedCheckpoint,
    checkpoint_name,
    new_checkpoint,
)
from phalanx.run.directory import sync_folder, write_atomic

OPTIMIZER_FILE = "optimizer.safetensors"
EMA_FILE = f"ema/{MODEL_FILE}"


def save_checkpoint(
    folder: Path,
    *,
    strategy: Strategy,
    state: dict[str, Any],
    average: WeightAverage | None = None,
    pretrained: Pretrained | None = None,
    add_files: Callable[[Path], None] = lambda folder: None,
) -> Path:
    """Write a checkpoint. Every rank calls this under a sharded strategy, otherwise one; that one,
    or the first, calls `add_files` before the checksums are made. What is frozen and pretrained
    stays where it is; the checkpoint knows which files that were."""
    pretrained = pretrained or Pretrained()
    process = strategy.process if strategy.is_sharded else None
    step = int(state["step"])
    aliases = find_aliases(strategy.model)
    left_out = {*aliases, *pretrained.elsewhere(strategy.model)}
    optimizer = strategy.optimizer_state()
    with _new_folder(folder, step, process) as temporary:
        write_tensors(temporary / MODEL_FILE, _without(strategy.model_state(), left_out), process)
        if average is not None:
            path = temporary / EMA_FILE
            write_tensors(path, _without(average.shards(), left_out), process)
            sync_folder(path.parent)
        write_tensors(temporary / OPTIMIZER_FILE, optimizer.tensors, process)
        if strategy.process.is_first or process is None:
            record = {
                **state,
                "schema_version": 1,
                "aliases": aliases,
                ELSEWHERE: pretrained.record(strategy.model),
                "optimizer": optimizer.numbers,
                "scaler": strategy.precision.scaler.state_dict(),
                "ema": average.record() if average is not None else None,
            }
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


def load_checkpoint(
    saved: SavedCheckpoint, strategy: Strategy, pretrained: Pretrained | None = None
) -> None:
    """Put a checkpoint's weights, optimizer and scaler state in place. What it leaves to files of
    pretrained weights is there already; that they are the same the first rank finds out for all."""
    record = saved.state.get(ELSEWHERE)
    if record is not None and strategy.process.is_first:
        changes = (pretrained or Pretrained()).changes(record, strategy.model)
        if changes:
            raise UserError(changes)
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
    has_rest = saved.state.get(ELSEWHERE) is not None
    for tensor, shard in shards.items():
        stored = aliases.get(tensor, tensor)
        if stored in file.names or not has_rest:
            file.read_into(stored, shard)


def _without(shards: Mapping[str, Shard], names: Container[str]) -> dict[str, Shard]:
    return {name: shard for name, shard in shards.items() if name not in names}
