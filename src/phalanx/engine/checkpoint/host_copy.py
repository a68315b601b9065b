"""Copies of what a checkpoint holds, in host memory: training goes on while they are written.

The copies are made in the order of the device's own work, so that they hold the weights of one
moment although the host may run ahead and the weights move on. On CUDA the memory is page-locked,
which makes a copy as fast as the link and lets the host go on meanwhile. It is kept and used again:
page-locking takes longer than copying.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from phalanx.engine.checkpoint.tensors import Content
from phalanx.engine.model.tensor_file import CHUNK_BYTES, Part
from phalanx.errors import format_bytes
from phalanx.machine.host import probe_cgroup, probe_memory

_ALIGNED = 64  # bytes; every type begins at a multiple of its size
_SPARE = 1.25  # of the memory that is free at least so much more than the copies take


class HostMemoryError(Exception):
    """Why there is no room for copies."""


class HostCopy:
    """Copies contents of checkpoints, one after another, into the same memory."""

    def __init__(self, device: torch.device, *, writers: int = 1) -> None:
        """`writers` processes on this machine do the same at the same time."""
        self._device = device
        self._writers = writers
        self._is_pinned = device.type == "cuda"
        self._pieces: dict[tuple[str, str], list[Tensor]] = {}
        self._slab = torch.empty(0, dtype=torch.uint8)
        self._used = 0
        self.stall_s: Callable[[], float] = lambda: 0.0
        """Seconds that the copies of the last one held the device; waits for them."""

    def take(self, content: Content) -> Content:
        """The same content in host memory. Nothing may be written from the last one any more."""
        self._make_room(content.files)
        started = _mark(self._device)
        begun = time.perf_counter()
        files = {
            file: {name: self._copy((file, name), part) for name, part in parts.items()}
            for file, parts in content.files.items()
        }
        if started is None:
            taken = time.perf_counter() - begun
            self.stall_s = lambda: taken
            return replace(content, files=files)
        ended = _mark(self._device)
        assert ended is not None

        def stall_s() -> float:
            ended.synchronize()
            return float(started.elapsed_time(ended)) / 1000

        self.stall_s = stall_s
        return replace(content, files=files, wait=ended.synchronize)

    @torch.no_grad()
    def _copy(self, key: tuple[str, str], part: Part) -> Part:
        if not part.pieces:
            return part
        (live,) = part.pieces  # in one piece until it is copied
        pieces, flat, first = self._pieces.get(key, []), live.reshape(-1), 0
        for piece in pieces:
            last = first + piece.numel()
            piece.copy_(flat[first:last], non_blocking=self._is_pinned)
            first = last
        return part._replace(pieces=pieces)

    def _make_room(self, files: Mapping[str, Mapping[str, Part]]) -> None:
        """Find memory for what has none yet, such as the optimizer's state after the first step."""
        missing = [
            ((file, name), part.dtype, numel)
            for file, parts in files.items()
            for name, part in parts.items()
            if (numel := sum(t.numel() for t in part.pieces)) != self._held((file, name), part)
        ]
        if not missing:
            return
        rest = sum(_aligned(numel * dtype.itemsize) for _, dtype, numel in missing)
        free = probe_memory(probe_cgroup()).available_bytes
        if rest * self._writers * _SPARE > free:
            each = f" on each of {self._writers} ranks here" if self._writers > 1 else ""
            raise HostMemoryError(
                f"copies take {format_bytes(rest)} of host memory{each}, of which "
                f"{format_bytes(free)} are free"
            )
        for key, dtype, numel in missing:
            self._pieces[key] = []
            most = CHUNK_BYTES // dtype.itemsize
            for first in range(0, numel, most):
                count = min(most, numel - first)
                self._pieces[key].append(self._allocate(count, dtype, rest))
                rest -= _aligned(count * dtype.itemsize)

    def _held(self, key: tuple[str, str], part: Part) -> int:
        pieces = self._pieces.get(key, [])
        if pieces and pieces[0].dtype != part.dtype:
            return -1
        return sum(piece.numel() for piece in pieces)

    def _allocate(self, count: int, dtype: torch.dtype, rest: int) -> Tensor:
        """From memory taken in chunks: page-locked memory comes in powers of two."""
        size = _aligned(count * dtype.itemsize)
        if self._used + size > len(self._slab):
            chunk = max(size, min(CHUNK_BYTES, rest))
            self._slab = torch.empty(chunk, dtype=torch.uint8, pin_memory=self._is_pinned)
            self._used = 0
        place = self._slab[self._used : self._used + count * dtype.itemsize]
        self._used += size
        return place.view(dtype)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def _mark(device: torch.device) -> torch.cuda.Event | None:
    """A point in the device's work, with its time."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event
