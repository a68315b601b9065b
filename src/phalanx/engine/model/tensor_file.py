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
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from phalanx.engine.model.shards import Shard

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
CHUNK_BYTES = 64 * 2**20
"""What is read or written at a time."""
_SAMPLED_BYTES = 4096  # of a tensor at a time, for a fingerprint
_MAX_HEADER_BYTES = 100 * 10**6  # the format's own limit


class Part(NamedTuple):
    """What goes into a file of one tensor from here: a range of its elements."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    """Of the whole tensor."""
    start: int
    """Where the range begins in the flattened whole."""
    pieces: list[Tensor]
    """One behind the other, on any device; none where another rank writes them down."""


def part_of(shard: Shard) -> Part:
    """A shard as it is, without a copy: it must not change before it is written."""
    tensor = shard.tensor.detach()
    pieces = [tensor] if shard.is_mine else []
    return Part(tensor.dtype, shard.shape, shard.start, pieces)


class Layout:
    """Where each tensor lies in a file; the same on every rank."""

    def __init__(
        self, parts: Mapping[str, Part], metadata: Mapping[str, str] | None = None
    ) -> None:
        entries: dict[str, object] = {"__metadata__": dict(metadata or {"format": "pt"})}
        position, places = 0, {}
        # Large elements first keeps every tensor aligned, as the reference implementation does.
        for name, part in sorted(
            parts.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])
        ):
            size = prod(part.shape) * part.dtype.itemsize
            places[name] = position
            entries[name] = {
                "dtype": _NAMES[part.dtype],
                "shape": list(part.shape),
                "data_offsets": [position, position + size],
            }
            position += size
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self.header = len(text).to_bytes(8, "little") + text
        self.places = {name: len(self.header) + place for name, place in places.items()}
        self.num_bytes = len(self.header) + position


def write_tensors(
    path: Path, shards: Mapping[str, Shard], metadata: Mapping[str, str] | None = None
) -> None:
    """Write a whole file from one process."""
    parts = {name: part_of(shard) for name, shard in shards.items()}
    layout = Layout(parts, metadata)
    create_file(path, layout)
    write_parts(path, layout, parts)


def create_file(path: Path, layout: Layout) -> None:
    """Make the file that ranks then write their parts into: its header, and its length."""
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        file.write(layout.header)
        file.truncate(layout.num_bytes)


def write_parts(path: Path, layout: Layout, parts: Mapping[str, Part]) -> None:
    """Write what is here into a file that was created, and wait until it is on disk."""
    with path.open("r+b") as file:
        for name, part in parts.items():
            offset = layout.places[name] + part.start * part.dtype.itemsize
            for piece in part.pieces:
                offset = _write_piece(file.fileno(), piece, offset)
        os.fsync(file.fileno())


def _write_piece(file: int, piece: Tensor, offset: int) -> int:
    flat, step = piece.reshape(-1), max(1, CHUNK_BYTES // piece.element_size())
    for first in range(0, flat.numel(), step):
        rest = as_bytes(flat[first : first + step]).data
        while rest:
            written = os.pwrite(file, rest, offset)
            rest, offset = rest[written:], offset + written
    return offset


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
        step = CHUNK_BYTES // dtype.itemsize
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
