"""Weights and optimizer state to and from safetensors files. No pickle on the load path."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.engine.checkpoint.pretrained import ELSEWHERE, Pretrained
from phalanx.engine.model.shards import Shard, find_aliases
from phalanx.engine.model.tensor_file import (
    Layout,
    Part,
    TensorFile,
    create_file,
    part_of,
    write_parts,
)
from phalanx.engine.process.group import Process
from phalanx.engine.strategies.base import Strategy
from phalanx.engine.training.ema import WeightAverage
from phalanx.errors import UserError
from phalanx.run.attempt import Attempt
from phalanx.run.checkpoints import (
    EMA_FILE,
    MODEL_FILE,
    STATE_FILE,
    SavedCheckpoint,
    check_room,
    checkpoint_name,
    is_transient,
    new_checkpoint,
)
from phalanx.run.directory import write_atomic

OPTIMIZER_FILE = "optimizer.safetensors"


@dataclass(frozen=True)
class Content:
    """All that a checkpoint holds, as this rank has it."""

    step: int
    files: dict[str, dict[str, Part]]
    """By the name of the file."""
    record: dict[str, Any]
    """What is no tensor, for `state.json`."""
    wait: Callable[[], None] = lambda: None
    """Returns once the pieces hold their values."""

    @property
    def num_bytes(self) -> int:
        """Of the files on disk, all ranks' parts together."""
        return sum(Layout(parts).num_bytes for parts in self.files.values())


def collect(
    strategy: Strategy,
    state: dict[str, Any],
    *,
    average: WeightAverage | None = None,
    pretrained: Pretrained | None = None,
) -> Content:
    """What a checkpoint of this moment holds, as references to what is live. What is frozen and
    pretrained stays where it is; the checkpoint knows which files that were."""
    pretrained = pretrained or Pretrained()
    aliases = find_aliases(strategy.model)
    left_out = {*aliases, *pretrained.elsewhere(strategy.model)}
    optimizer = strategy.optimizer_state()
    files = {MODEL_FILE: _parts(strategy.model_state(), left_out)}
    if average is not None:
        files[EMA_FILE] = _parts(average.shards(), left_out)
    files[OPTIMIZER_FILE] = _parts(optimizer.tensors)
    record = {
        **state,
        "schema_version": 1,
        "aliases": aliases,
        ELSEWHERE: pretrained.record(strategy.model),
        "optimizer": optimizer.numbers,
        "scaler": strategy.precision.scaler.state_dict(),
        "ema": average.record() if average is not None else None,
    }
    return Content(int(state["step"]), files, record)


def write_checkpoint(
    folder: Path,
    content: Content,
    *,
    process: Process | None = None,
    add_files: Callable[[Path], None] = lambda folder: None,
    attempt: Attempt | None = None,
) -> Path:
    """Write a checkpoint's folder. With `process` every rank calls this and writes its parts, and
    talks to the others over its control group alone; what fails on one raises on all. The first
    rank, or the only one, calls `add_files` before the checksums are made."""
    content.wait()
    final = folder / checkpoint_name(content.step)
    if process is None:
        with new_checkpoint(folder, content.step, attempt) as temporary:
            _create(temporary, content)
            _write(temporary, content)
            _finish(temporary, content, add_files)
        return final
    if not process.is_first:
        with _in_agreement(process):
            pass
        temporary = Path(process.agree_text(""))
        with _in_agreement(process):
            _write(temporary, content)
        with _in_agreement(process):
            pass
        return final
    with ExitStack() as stack:
        with _in_agreement(process):
            temporary = stack.enter_context(new_checkpoint(folder, content.step, attempt))
            _create(temporary, content)
        process.agree_text(str(temporary))
        with _in_agreement(process):
            _write(temporary, content)
        with _in_agreement(process):
            _finish(temporary, content, add_files)
            stack.close()  # manifest, and the one rename
    return final


def _create(temporary: Path, content: Content) -> None:
    check_room(temporary, content.num_bytes)
    for name, parts in content.files.items():
        create_file(temporary / name, Layout(parts))


def _write(temporary: Path, content: Content) -> None:
    for name, parts in content.files.items():
        write_parts(temporary / name, Layout(parts), parts)


def _finish(temporary: Path, content: Content, add_files: Callable[[Path], None]) -> None:
    write_atomic(temporary / STATE_FILE, json.dumps(content.record, indent=2))
    add_files(temporary)


@contextmanager
def _in_agreement(process: Process) -> Iterator[None]:
    """Around a part of the work of all ranks: raises on every rank when it fails on one, and as
    one that may pass (`is_transient`) only when all failures may."""
    error: Exception | None = None
    try:
        yield
    except Exception as caught:
        error = caught
    may_pass = error is not None and is_transient(error)
    lasting, passing = process.count([error is not None and not may_pass, may_pass])
    if error is not None and not (lasting and may_pass):
        raise error
    if lasting:
        raise OSError(errno.ECANCELED, "another rank could not write its part") from error
    if passing:
        raise OSError(errno.EAGAIN, "another rank could not write its part")


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


def _parts(shards: Mapping[str, Shard], without: Container[str] = ()) -> dict[str, Part]:
    return {name: part_of(shard) for name, shard in shards.items() if name not in without}
