"""What a rank measures of itself: speed and memory. Reading a loss synchronises; nothing else."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import psutil
import torch


class SpeedMeter:
    """Samples per second of training, without the time spent evaluating and saving."""

    def __init__(self, consumed: int) -> None:
        self._since = time.perf_counter()
        self._consumed = consumed
        self._paused_s = 0.0
        self._waited_s = 0.0
        self.data_wait: float | None = None
        """Share of the time before the last reading in which there were no samples."""

    def wait(self, seconds: float) -> None:
        """Samples were waited for so long."""
        self._waited_s += seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time inside is not training."""
        started = time.perf_counter()
        yield
        self._paused_s += time.perf_counter() - started

    def read(self, consumed: int) -> float:
        """Samples per second since the last reading."""
        now = time.perf_counter()
        elapsed = max(now - self._since - self._paused_s, 1e-9)
        rate = (consumed - self._consumed) / elapsed
        self.data_wait = min(1.0, self._waited_s / elapsed)
        self._since, self._consumed, self._paused_s, self._waited_s = now, consumed, 0.0, 0.0
        return rate


def memory_bytes(device: torch.device) -> int:
    """Peak allocated memory on the device since this was last asked, or resident memory of the
    process on CPU."""
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        return peak
    if device.type == "mps":
        return int(torch.mps.current_allocated_memory())
    return _resident_bytes(os.getpid())()


def memory_trouble(device: torch.device) -> tuple[int, int]:
    """Since the start: how often the device's allocator had to give back what it kept and ask
    again, and how many pages of this process had to be read from disk."""
    retries = 0
    if device.type == "cuda":
        retries = int(torch.cuda.memory_stats_as_nested_dict(device).get("num_alloc_retries", 0))
    return retries, resource.getrusage(resource.RUSAGE_SELF).ru_majflt


@cache
def _resident_bytes(number: int) -> Callable[[], int]:
    """Asks for the resident memory of this process, whose number it is. On Linux from the file that
    psutil reads too, held open: 2 us instead of 17."""
    try:
        descriptor = os.open("/proc/self/statm", os.O_RDONLY)
    except OSError:
        process = psutil.Process(number)
        return lambda: int(process.memory_info().rss)
    page = os.sysconf("SC_PAGE_SIZE")
    return lambda: int(os.pread(descriptor, 256, 0).split()[1]) * page


def synchronise(device: torch.device) -> None:
    """Wait until the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
