"""safetensors files that many ranks write and read in parts.

The format is a JSON header and the tensors' bytes in row-major order
(huggingface.co/docs/safetensors, "Format"). A `Shard` is one range of those bytes: every rank
writes its own into the one file, and reads any other cut of it back. So a checkpoint looks the same
whatever strategy and number of ranks wrote it, no rank ever holds more than its part, and nothing
has to be put together afterwards.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from phalanx.engine.process import Process
from phalanx.engine.shards import Shard

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
_CHUNK_BYTES = 64 * 2**20  # what is read at a time; nothing larger passes through host memory
_SAMPLED_BYTES = 4096  # of a tensor at a time, for a fingerprint
_MAX_HEADER_BYTES = 100 * 10**6  # the format's own limit


def write_tensors(path: Path, shards: Mapping[str, Shard], process: Process | None = None) -> None:
    """Write a file. With `process` every rank calls this and writes its ranges; without, the caller
    holds everything."""
    header, offsets = _layout(shards)
    if process is None or process.is_first:
        path.parent.mkdir(exist_ok=True)
        with path.open("wb") as file:
            file.write(header)
            last = max((offsets[n] + _num_bytes(s) for n, s in shards.items()), default=0)
            file.truncate(max(last, len(header)))
    if process is not None:
        process.barrier()
    with path.open("r+b") as file:
        for name, shard in shards.items():
            if shard.is_mine or process is None:
                _write_range(file.fileno(), shard, offsets[name])
        os.fsync(file.fileno())
    if process is not None:
        process.barrier()


def _layout(shards: Mapping[str, Shard]) -> tuple[bytes, dict[str, int]]:
    """The header, and where each tensor begins in the file; the same on every rank."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    position, places = 0, {}
    # Large elements first keeps every tensor aligned, as the reference implementation does.
    ordered = sorted(shards.items(), key=lambda item: (-item[1].tensor.element_size(), item[0]))
    for name, shard in ordered:
        size = _num_bytes(shard)
        places[name] = position
        entries[name] = {
            "dtype": _NAMES[shard.tensor.dtype],
            "shape": list(shard.shape),
            "data_offsets": [position, position + size],
        }
        position += size
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    return header, {name: len(header) + place for name, place in places.items()}


def _num_bytes(shard: Shard) -> int:
    return prod(shard.shape) * shard.tensor.element_size()


def _write_range(file: int, shard: Shard, offset: int) -> None:
    tensor = shard.tensor.detach().reshape(-1).contiguous()
    offset += shard.start * tensor.element_size()
    step = max(1, _CHUNK_BYTES // tensor.element_size())
    for first in range(0, tensor.numel(), step):
        part = as_bytes(tensor[first : first + step]).data
        while part:
            written = os.pwrite(file, part, offset)
            part, offset = part[written:], offset + written


def as_bytes(tensor: Tensor) -> np.ndarray[Any, Any]:
    """A tensor's bytes in row-major order, sharing the memory of a contiguous one on the CPU; numpy
    knows no bfloat16."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


class TensorFile:
    """A safetensors file opened to read ranges of its tensors."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if not 0 < size <= _MAX_HEADER_BYTES:
                raise ValueError(f"`{path}` is no safetensors file: a header of {size} bytes")
            self._header = file.read(size)
            entries = json.loads(self._header)
            length = file.seek(0, os.SEEK_END)
        entries.pop("__metadata__", None)
        self._begin = 8 + size
        self._entries = {
            str(name): (entry["dtype"], tuple(entry["shape"]), entry["data_offsets"])
            for name, entry in entries.items()
        }
        whole = self._begin + max((end for _, _, (_, end) in self._entries.values()), default=0)
        if length < whole:
            raise ValueError(f"`{path}` ends too early: {length:,} of {whole:,} bytes")

    @property
    def names(self) -> Iterable[str]:
        return self._entries.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        shape: tuple[int, ...] = self._entries[name][1]
        return shape

    def fingerprint(self) -> str:
        """Hash of all names, shapes and types, and of a few KiB of each tensor, at its beginning
        and in its middle: tells files of weights apart without reading gigabytes."""
        digest = hashlib.sha256(self._header)
        with self._path.open("rb") as file:
            for _, _, (begin, end) in self._entries.values():
                for place in (begin, (begin + end) // 2):
                    file.seek(self._begin + place)
                    digest.update(file.read(min(_SAMPLED_BYTES, end - place)))
        return digest.hexdigest()

    def read(self, name: str) -> Tensor:
        """A whole tensor, in the file's type."""
        dtype, shape, _ = self._entry(name)
        whole = torch.empty(shape, dtype=dtype)
        self.read_into(name, Shard(whole, shape))
        return whole

    @torch.no_grad()
    def read_into(self, name: str, shard: Shard) -> None:
        """Copy a range from the file into the shard's tensor, in its type and on its device."""
        dtype, shape, (begin, end) = self._entry(name)
        if shape != shard.shape or end - begin != prod(shape) * dtype.itemsize:
            raise ValueError(f"`{name}` is {list(shape)} in {self._path}, here {list(shard.shape)}")
        target = shard.tensor.detach()
        flat = target.view(-1) if target.is_contiguous() else target.new_empty(target.numel())
        step = _CHUNK_BYTES // dtype.itemsize
        with self._path.open("rb", buffering=0) as file:
            file.seek(self._begin + begin + shard.start * dtype.itemsize)
            for first in range(0, flat.numel(), step):
                part = flat[first : first + step]
                is_direct = part.dtype == dtype and part.device.type == "cpu"
                buffer = part if is_direct else torch.empty(part.numel(), dtype=dtype)
                _fill(file, as_bytes(buffer).data, self._path)
                if not is_direct:
                    part.copy_(buffer)
        if not target.is_contiguous():
            target.copy_(flat.view(target.shape))

    def _entry(self, name: str) -> tuple[torch.dtype, tuple[int, ...], tuple[int, int]]:
        kind, shape, place = self._entries[name]
        if kind not in _DTYPES:
            raise ValueError(f"`{name}` in {self._path} is of type {kind}: known: {list(_DTYPES)}")
        return _DTYPES[kind], shape, place


def _fill(file: object, buffer: memoryview, path: Path) -> None:
    while buffer:
        count = file.readinto(buffer)  # type: ignore[attr-defined]
        if not count:
            raise ValueError(f"`{path}` ends too early")
        buffer = buffer[count:]
