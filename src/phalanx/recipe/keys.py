"""Randomness as a function of integer keys: the same on CPU, in a loader worker and on the device.

A key is an int64 per sample, made by the engine from (seed, epoch, sample). Every function here
takes keys as a numpy array or a torch tensor and returns the same kind, on the same device, with
the same integer bits (splitmix64: Steele, Lea, Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014). Nothing depends on a rank, a worker or on what was drawn before.
"""

from __future__ import annotations

import sys
import zlib
from math import prod, tau
from typing import Any

import numpy as np


def _signed(value: int) -> int:
    """The int64 with the bits of an unsigned 64-bit constant; torch has no uint64 arithmetic."""
    return value - (1 << 64) if value >= 1 << 63 else value


_ALL = (1 << 64) - 1
_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)

# What a byte makes of the remainder, from its checksum: crc32(b) = table[b ^ 0xFF] ^ 0xFF000000.
_CRC_TABLE = tuple(zlib.crc32(bytes([byte ^ 0xFF])) ^ 0xFF000000 for byte in range(256))

Keys = Any
"""An int64 numpy array or torch tensor, one key per sample."""


def _logical_shift(bits: Keys, count: int) -> Keys:
    # `>>` on int64 copies the sign bit down; the mask removes the copies.
    return (bits >> count) & ((1 << (64 - count)) - 1)


def _mix(bits: Keys) -> Keys:
    bits = (bits ^ _logical_shift(bits, 30)) * _MIX_1
    bits = (bits ^ _logical_shift(bits, 27)) * _MIX_2
    return bits ^ _logical_shift(bits, 31)


def _crc32(text: str) -> int:
    """`zlib.crc32`, in steps that torch's compiler follows: it knows nothing of zlib, and a model
    that draws noise in its forward would fall apart at each draw."""
    crc = 0xFFFFFFFF
    data = text.encode()
    for place in range(len(data)):  # torch 2.11 does not follow a loop over bytes
        crc = crc >> 8 ^ _CRC_TABLE[(crc ^ data[place]) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _tag_number(tag: int | str) -> int:
    number = _crc32(tag) if isinstance(tag, str) else tag
    return _signed((number + 1) * 0x9E3779B97F4A7C15 % (1 << 64))


def derive(keys: Keys, *tags: int | str) -> Keys:
    """New keys, unrelated to the old ones, for each tag: `derive(keys, "flip")`."""
    for tag in tags:
        keys = _mix(_mix(keys) + _tag_number(tag))
    return keys


def make_key(*numbers: int) -> int:
    """One key from integers, such as (seed, step, slot): `derive` of 0, in plain Python because an
    array of one costs twenty times as much and the training loop calls this per micro-batch."""
    return extend_key(0, *numbers)


def extend_key(key: int, *numbers: int) -> int:
    """The key of the numbers that `key` was made of, and some more."""
    for number in numbers:
        key = _mix_int(_mix_int(key) + (number + 1) * 0x9E3779B97F4A7C15)
    return _signed(key)


def _mix_int(value: int) -> int:
    value &= _ALL
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _ALL
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _ALL
    return value ^ value >> 31


def number_keys(base: int, numbers: Keys) -> Keys:
    """One key per number, such as the keys of an epoch's samples; `base` comes from `make_key`."""
    return _mix(numbers * _GOLDEN + base)


def bits(keys: Keys, *shape: int) -> Keys:
    """64 random bits per element as int64, shaped `(len(keys), *shape)`."""
    counter = _arange(keys, prod(shape))
    return _mix(keys[:, None] + (counter + 1) * _GOLDEN).reshape(len(keys), *shape)


def uniform(keys: Keys, *shape: int, low: float = 0.0, high: float = 1.0) -> Keys:
    """Float32 numbers in [low, high), shaped `(len(keys), *shape)`."""
    # 24 bits fill a float32 mantissa: the conversion is exact on every device.
    unit = _float32(_logical_shift(bits(keys, *shape), 40)) * 2.0**-24
    # Rounding to float32 could reach `high` itself.
    return (unit * (high - low) + low).clip(max=float(np.nextafter(np.float32(high), -np.inf)))


def integers(keys: Keys, *shape: int, low: int = 0, high: int) -> Keys:
    """Integers in [low, high), shaped `(len(keys), *shape)`."""
    return _logical_shift(bits(keys, *shape), 1) % (high - low) + low


def normal(keys: Keys, *shape: int) -> Keys:
    """Standard normal float32 numbers, shaped `(len(keys), *shape)` (Box-Muller)."""
    library = _library(keys)
    radius = 1.0 - uniform(derive(keys, "radius"), *shape)  # (0, 1]: the logarithm stays finite
    angle = uniform(derive(keys, "angle"), *shape) * tau
    return library.sqrt(library.log(radius) * -2.0) * library.cos(angle)


def bernoulli(keys: Keys, *shape: int, probability: float) -> Keys:
    """True with the given probability, shaped `(len(keys), *shape)`."""
    return uniform(keys, *shape) < probability


def generator(key: int) -> np.random.Generator:
    """A numpy generator for one sample, for libraries that want one."""
    return np.random.Generator(np.random.Philox(key=int(key) % (1 << 64)))


def _library(keys: Keys) -> Any:
    # torch is already imported when a tensor arrives; this module never imports it itself.
    return np if isinstance(keys, np.ndarray) else sys.modules["torch"]


def _arange(keys: Keys, count: int) -> Keys:
    if isinstance(keys, np.ndarray):
        return np.arange(count, dtype=np.int64)
    torch = sys.modules["torch"]
    # Or-ed with nothing, so that compiled code takes it for data: as an index its products would be
    # those of 32 bits, and Triton refuses the constants (torch 2.11).
    return torch.arange(count, dtype=torch.int64, device=keys.device) | 0


def _float32(values: Keys) -> Keys:
    if isinstance(values, np.ndarray):
        return values.astype(np.float32)
    return values.float()
