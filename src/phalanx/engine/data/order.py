"""Which sample comes when, and the random keys it brings: functions of (seed, epoch, index).

The order is a keyed permutation computed where it is needed, so a billion samples cost no memory
and any position is reached at once. Nothing here knows of ranks, workers or iterators.
"""

from __future__ import annotations

from functools import lru_cache
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from phalanx.errors import ExitCode, Finding, UserError
from phalanx.recipe.keys import extend_key, make_key, number_keys

Ids = NDArray[np.int64]

# Streams of make_key: a number used for one purpose is never used for another.
ORDER, SAMPLE, DROPOUT, INIT, WORKER = range(5)

_ROUNDS = 6


def permute(positions: Ids, size: int, key: int) -> Ids:
    """The ids at some positions of a random order of `range(size)`.

    A Feistel network on pairs (left, right) with left < a, right < b and a * b just above `size`;
    the few results beyond `size` are sent round again until they fall inside (Black and Rogaway,
    "Ciphers with arbitrary finite domains", CT-RSA 2002).
    """
    if size <= 1:
        return np.zeros_like(positions)
    rows = isqrt(size - 1) + 1
    columns = -(-size // rows)
    ids = _feistel(positions.astype(np.int64, copy=True), rows, columns, key)
    while (outside := ids >= size).any():
        ids[outside] = _feistel(ids[outside], rows, columns, key)
    return ids


def _feistel(values: Ids, rows: int, columns: int, key: int) -> Ids:
    left, right = values // columns, values % columns
    for left_key, right_key in _round_keys(key):
        left = (left + _below(right, left_key, rows)) % rows
        right = (right + _below(left, right_key, columns)) % columns
    return left * columns + right


@lru_cache(maxsize=8)
def _round_keys(key: int) -> list[tuple[int, int]]:
    """Two keys a round. They stay the same for an epoch and cost as much as the arithmetic."""
    return [(make_key(key, number, 0), make_key(key, number, 1)) for number in range(_ROUNDS)]


def _below(values: Ids, key: int, limit: int) -> Ids:
    # Numpy's % takes the divisor's sign: the result is never negative.
    below: Ids = number_keys(key, values) % limit
    return below


def ids_at(seed: int, epoch: int, start: int, stop: int, num_samples: int) -> Ids:
    """Sample ids at positions `start` to `stop` of an epoch."""
    return ids_of(seed, epoch, np.arange(start, stop, dtype=np.int64), num_samples)


def ids_of(seed: int, epoch: int, positions: Ids, num_samples: int) -> Ids:
    """Sample ids at any positions of an epoch."""
    return permute(positions, num_samples, make_key(seed, ORDER, epoch))


def keys_of(seed: int, epoch: int, ids: Ids) -> Ids:
    """One random key per sample: the same sample has another one in each epoch."""
    keys: Ids = number_keys(make_key(seed, SAMPLE, epoch), ids)
    return keys


def check_size(size: int, planned: int, rank: int) -> None:
    """Refuse a train split that is not of the size the order of its samples is made for."""
    if size == planned:
        return
    raise UserError(
        Finding(
            slug="data-size",
            what=f"rank {rank} finds {size} samples in the train split, {planned} were planned for",
            why="the data set keeps only the part of its rank, or it has changed since the plan",
            fix="let data() give all samples on every rank: Phalanx deals them to the ranks",
        ),
        exit_code=ExitCode.FAILED,
    )


def dropout_seed(seed: int, step: int, slot: int) -> int:
    """Seed of torch's generator for one micro-batch; non-negative, as manual_seed likes it."""
    return extend_key(_dropout_key(seed), step, slot) >> 1 & (1 << 62) - 1


@lru_cache(maxsize=8)
def _dropout_key(seed: int) -> int:
    return make_key(seed, DROPOUT)
