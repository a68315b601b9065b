"""Where the time of steps goes on a GPU, from the profiler's timeline.

The device computes; or it only exchanges (exposed communication); or it does nothing while the host
waits for samples (data); or it does nothing for another reason (overhead). The four add up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, profile

DATA = "phalanx: data"
STEP = "phalanx: step"

Interval = tuple[float, float]


@dataclass(frozen=True)
class Split:
    """Seconds of one step."""

    data_s: float
    compute_s: float
    communication_s: float
    overhead_s: float


def mark(name: str) -> AbstractContextManager[Any]:
    """A part of the host's work that the timeline shows under a name."""
    return record_function(name)


def profile_steps(run: Callable[[], None], steps: int) -> Split | None:
    """Run something that does `steps` steps, marked as above, under the profiler; None when it saw
    no kernels (no permission, or another profiler holds the device)."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        run()
        torch.cuda.synchronize()
    return _split(_read(profiler), steps)


@dataclass(frozen=True)
class _Entry:
    name: str
    is_device: bool
    start: float
    end: float


def _read(profiler: Any) -> list[_Entry]:
    """What was recorded, in seconds since the first of it. The raw entries: torch's own view of
    them builds a tree, which takes longer than what was profiled."""
    raw = getattr(getattr(profiler, "profiler", None), "kineto_results", None)
    if raw is None:
        return []
    events = raw.events()
    # Whole nanoseconds since 1970 do not fit into a float.
    first = min((event.start_ns() for event in events), default=0)
    return [
        _Entry(
            event.name(),
            event.device_type().name != "CPU",
            (event.start_ns() - first) * 1e-9,
            (event.start_ns() - first + event.duration_ns()) * 1e-9,
        )
        for event in events
    ]


def _split(entries: list[_Entry], steps: int) -> Split | None:
    # A mark of the host shows up on the device too, over all kernels started inside of it.
    marks = {entry.name for entry in entries if not entry.is_device}
    kernels = [entry for entry in entries if entry.is_device and entry.name not in marks]
    host = [entry for entry in entries if not entry.is_device and entry.name in (DATA, STEP)]
    if not kernels or not host:
        return None
    compute = union((k.start, k.end) for k in kernels if not _is_communication(k.name))
    exchange = union((k.start, k.end) for k in kernels if _is_communication(k.name))
    exposed = subtract(exchange, compute)
    waiting = union((h.start, h.end) for h in host if h.name == DATA)
    data = subtract(waiting, union([*compute, *exchange]))
    start = min(h.start for h in host)
    end = max(entry.end for entry in (*kernels, *host))
    data_s, compute_s, communication_s = (
        _length(part) / steps for part in (data, compute, exposed)
    )
    overhead_s = (end - start) / steps - data_s - compute_s - communication_s
    return Split(data_s, compute_s, communication_s, max(0.0, overhead_s))


def _is_communication(name: str) -> bool:
    return "nccl" in name.lower()


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same stretch of time as disjoint intervals in order."""
    joined: list[Interval] = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def subtract(these: list[Interval], those: list[Interval]) -> list[Interval]:
    """What of some disjoint, ordered intervals is in none of the others."""
    left: list[Interval] = []
    first = 0
    for start, end in these:
        while first < len(those) and those[first][1] <= start:
            first += 1
        index, position = first, start
        while index < len(those) and those[index][0] < end:
            if those[index][0] > position:
                left.append((position, those[index][0]))
            position = max(position, those[index][1])
            index += 1
        if position < end:
            left.append((position, end))
    return left


def _length(intervals: list[Interval]) -> float:
    return sum(end - start for start, end in intervals)
