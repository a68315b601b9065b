"""Measures how long a recipe's data takes to fetch samples."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from phalanx.engine.data.micro_batches import choose_fetch
from phalanx.planner.schema.trace import FetchTime

_TIMED = 32  # samples whose fetch is timed, as one time for each
_FEW, _MANY = 8, 8192  # samples of the fetches that a line is drawn through, as far as
_TIMED_S = 0.5  # the larger one may be expected to take no longer,
_TIMED_BYTES = 2**28  # and no more memory


def fetch_seconds(data: Any) -> float:
    """Seconds per sample of a batched fetch; the second of two, since the first opens files."""
    size = min(len(data), _TIMED)
    return _second_fetch(data, size) / size


def fetch_time(data: Any, sample_bytes: int) -> FetchTime:
    """Measure the time of a batched fetch, per call and per sample: a line through a few samples
    and as many more as fetch in half a second. A vectorised fetch takes hardly more for all."""
    few = min(len(data), _FEW)
    few_s = many_s = _second_fetch(data, few)
    many = few
    most = min(len(data), _MANY, _TIMED_BYTES // max(1, sample_bytes))
    while 4 * many <= most and 4 * many_s < _TIMED_S:
        many *= 4
        many_s = _second_fetch(data, many)
    if many == few:
        return FetchTime(0.0, few_s / few)
    per_sample = max(0.0, many_s - few_s) / (many - few)
    return FetchTime(max(0.0, many_s - per_sample * many), per_sample)


def _second_fetch(data: Any, size: int) -> float:
    ids = np.arange(size, dtype=np.int64)
    fetch = choose_fetch(data)
    seconds = 0.0
    for _ in range(2):
        started = time.perf_counter()
        fetch(ids, ids)
        seconds = time.perf_counter() - started
    return seconds
