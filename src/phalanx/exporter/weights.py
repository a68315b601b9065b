"""Weights under the model's own names, in one safetensors file that says what it is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from phalanx.engine.checkpoint.initial_weights import checkpoint_state, read_torch_file
from phalanx.engine.checkpoint.recipe_files import CheckpointTensors
from phalanx.engine.model.shards import Shard
from phalanx.engine.model.tensor_file import TensorFile, write_tensors
from phalanx.recipe.questions import ExportQuestion
from phalanx.run.checkpoints import EMA_FILE, MODEL_FILE
from phalanx.run.weights_file import RECORD


class _FileTensors(Mapping[str, Tensor]):
    """The tensors of a safetensors file by itself, each read when it is looked up."""

    def __init__(self, path: Path) -> None:
        self._file = TensorFile(path)

    def __getitem__(self, name: str) -> Tensor:
        return self._file.read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._file.names)

    def __len__(self) -> int:
        return len(list(self._file.names))


def open_tensors(path: Path) -> Mapping[str, Tensor]:
    """The tensors of a checkpoint, of a safetensors file or of a .pt file, under the model's names;
    nothing in them is executed."""
    if path.suffix != ".safetensors":
        return read_torch_file(path)
    if not checkpoint_state(path):
        return _FileTensors(path)
    is_average = path.parent.name == Path(EMA_FILE).parent.name
    checkpoint = path.parent.parent if is_average else path.parent
    return CheckpointTensors(checkpoint, is_average=is_average)


def write_weights(request: ExportQuestion, tensors: Mapping[str, Tensor], folder: Path) -> None:
    """One file, which `load_state_dict` takes: tied weights are there under every name."""
    target = folder / MODEL_FILE
    metadata = {"format": "pt", RECORD: json.dumps(request.record)}
    is_plain = request.file.suffix == ".safetensors" and not request.is_half
    if is_plain and len(list(TensorFile(request.file).names)) == len(tensors):
        _copy_with(metadata, request.file, target)
        return
    shards = {}
    for name in tensors:
        tensor = tensors[name]
        if request.is_half and tensor.is_floating_point():
            tensor = tensor.to(torch.float16)
        shards[name] = Shard(tensor, tuple(tensor.shape))
    write_tensors(target, shards, metadata)


def _copy_with(metadata: dict[str, str], source: Path, target: Path) -> None:
    """The same bytes behind another header: places in it count from its own end."""
    with source.open("rb") as old, target.open("wb") as new:
        entries = json.loads(old.read(int.from_bytes(old.read(8), "little")))
        text = json.dumps({**entries, "__metadata__": metadata}, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        new.write(len(text).to_bytes(8, "little") + text)
        shutil.copyfileobj(old, new, 16 * 2**20)
