"""Fingerprints of tensors on any device, whole or sharded: see `diagnose.recording.Fingerprint`."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor

from phalanx.diagnose.recording import NUM_PROJECTIONS, Fingerprint, Tensors
from phalanx.engine.model.shards import Shard
from phalanx.recipe.keys import make_key, number_keys

_CHUNK = 2**20  # elements whose random factors are made at a time: 8 MiB for each array
_FACTOR_BITS = 20  # three factors from the 64 bits of one key; exact in float64 on every device


def part_label(shard: Shard) -> str:
    """Which elements of the whole a shard holds; empty for all of them."""
    if shard.tensor.numel() == prod(shard.shape):
        return ""
    return f"{shard.start}:{shard.stop}"


@torch.no_grad()
def fingerprints(shards: Mapping[str, Shard | None]) -> Tensors:
    """The fingerprint of what this rank holds of each tensor; waits for the device once."""
    sums = {name: _sums(name, s.tensor, s.start) for name, s in shards.items() if s is not None}
    numbers = torch.stack([row.cpu() for row in sums.values()]).tolist() if sums else []
    prints = (Fingerprint(squares, tuple(products)) for squares, *products in numbers)
    found = dict(zip(sums, prints, strict=True))
    return {name: found.get(name) for name in shards}


def _sums(name: str, tensor: Tensor, offset: int) -> Tensor:
    """The sum of squares, and products with random vectors. Their factors are a function of name
    and position, so that the sums of shards add up. They are real numbers, not signs: weights that
    Adam moved by +lr on one side and -lr on the other would cancel in every second product."""
    if tensor.is_complex():
        parts = {"real": tensor.real, "imaginary": tensor.imag}
        return torch.stack([_sums(f"{name}, {n}", t, offset) for n, t in parts.items()]).sum(0)
    flat = (tensor.to_dense() if tensor.is_sparse else tensor).reshape(-1)
    key = make_key(zlib.crc32(name.encode()))
    total = torch.zeros(1 + NUM_PROJECTIONS, dtype=torch.float64, device=flat.device)
    for start in range(0, len(flat), _CHUNK):
        values = flat[start : start + _CHUNK].double()
        positions = torch.arange(offset + start, offset + start + len(values), device=flat.device)
        bits = number_keys(key, positions)
        total[0] += values.dot(values)
        for index in range(NUM_PROJECTIONS):
            total[1 + index] += values.dot(_factors(bits, index))
    return total


def _factors(bits: Tensor, index: int) -> Tensor:
    """Numbers between -1 and 1, never 0, from one slice of random bits."""
    numbers = (bits >> index * _FACTOR_BITS) & ((1 << _FACTOR_BITS) - 1)
    return (2 * numbers + 1 - (1 << _FACTOR_BITS)).double() / (1 << _FACTOR_BITS)
