"""Fingerprints of tensors on any device, whole or sharded: see `diagnose.recording.Fingerprint`."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from phalanx.diagnose.recording import NUM_PROJECTIONS, Fingerprint, Tensors
from phalanx.recipe.keys import make_key, number_keys

_CHUNK = 2**20  # elements whose random factors are made at a time: 8 MiB for each array
_FACTOR_BITS = 20  # three factors from the 64 bits of one key; exact in float64 on every device


class Part(NamedTuple):
    """Which elements of a whole tensor a local one holds."""

    shape: tuple[int, ...]
    """Of the whole."""
    local_shape: tuple[int, ...]
    offset: tuple[int, ...]

    @property
    def label(self) -> str:
        """Empty when it is the whole."""
        if self.shape == self.local_shape:
            return ""
        return " ".join(f"{a}:{a + n}" for a, n in zip(self.offset, self.local_shape, strict=True))

    def positions(self, start: int, stop: int, device: torch.device) -> Tensor:
        """Where elements `start` to `stop` of the flat local tensor stand in the flat whole."""
        local = torch.arange(start, stop, device=device)
        if self.shape[1:] == self.local_shape[1:]:  # whole rows lie one behind the other
            row = prod(self.shape[1:])
            return local + (self.offset[0] * row if self.offset else 0)
        found, stride = torch.zeros_like(local), 1
        dimensions = zip(self.shape, self.local_shape, self.offset, strict=True)
        for size, local_size, offset in reversed(list(dimensions)):
            found += (local % local_size + offset) * stride
            local, stride = local // local_size, stride * size
        return found


def part_of(tensor: Tensor) -> Part:
    """The place of what this rank holds: the whole of a plain tensor, the shard of a DTensor."""
    shape = tuple(tensor.shape)
    if not isinstance(tensor, DTensor):
        return Part(shape, shape, (0,) * len(shape))
    local, offset = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    return Part(shape, tuple(local), tuple(offset))


@torch.no_grad()
def fingerprints(tensors: Mapping[str, Tensor | None]) -> Tensors:
    """The fingerprint of each tensor, or of this rank's shard of it; waits for the device once."""
    sums = {name: _sums(name, tensor) for name, tensor in tensors.items() if tensor is not None}
    numbers = torch.stack([row.cpu() for row in sums.values()]).tolist() if sums else []
    found = dict(zip(sums, map(Fingerprint.from_json, numbers), strict=True))
    return {name: found.get(name) for name in tensors}


def _sums(name: str, tensor: Tensor) -> Tensor:
    """The sum of squares, and products with random vectors. Their factors are a function of name
    and position, so that the sums of shards add up. They are real numbers, not signs: weights that
    Adam moved by +lr on one side and -lr on the other would cancel in every second product."""
    part = part_of(tensor)
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()
    flat = (local.to_dense() if local.is_sparse else local).reshape(-1)
    if flat.is_complex():
        return _sums(f"{name}, real", local.real) + _sums(f"{name}, imaginary", local.imag)
    key = make_key(zlib.crc32(name.encode()))
    total = torch.zeros(1 + NUM_PROJECTIONS, dtype=torch.float64, device=flat.device)
    for start in range(0, len(flat), _CHUNK):
        values = flat[start : start + _CHUNK].double()
        bits = number_keys(key, part.positions(start, start + len(values), flat.device))
        total[0] += values.dot(values)
        for index in range(NUM_PROJECTIONS):
            total[1 + index] += values.dot(_factors(bits, index))
    return total


def _factors(bits: Tensor, index: int) -> Tensor:
    """Numbers between -1 and 1, never 0, from one slice of random bits."""
    numbers = (bits >> index * _FACTOR_BITS) & ((1 << _FACTOR_BITS) - 1)
    return (2 * numbers + 1 - (1 << _FACTOR_BITS)).double() / (1 << _FACTOR_BITS)
