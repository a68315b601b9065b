"""Samples of what ranks use, as `usage` events: `phalanx watch` shows them, `phalanx doctor` sees
in them which one is idle."""

from __future__ import annotations

import time
from dataclasses import replace

from phalanx.machine.usage import GpuMeter, GpuUsage, ProcessMeter
from phalanx.run.event_kinds import Usage

_FIRST_S = 1.0
_EVERY_S = 5.0


class UsageSampler:
    """Samples of the ranks of one attempt on one machine. `gpus` are the driver's numbers of the
    GPUs that they take as a rule, empty on CPU; `first` is the number of the first of them."""

    def __init__(self, pids: list[int], gpus: list[int], *, first: int = 0) -> None:
        self._first = first
        self._ranks = [ProcessMeter(pid) for pid in pids]
        self._gpus = gpus
        self._meter = GpuMeter() if gpus else None
        for rank in self._ranks:
            rank.read()  # CPU per cent is since a first reading
        self._next_s = time.monotonic() + _FIRST_S

    def look(self) -> list[Usage]:
        """One record per rank that lives, when it is time; nothing otherwise."""
        now = time.monotonic()
        if now < self._next_s:
            return []
        self._next_s = now + _EVERY_S
        there = self._meter.read() if self._meter is not None else []
        return [sample for rank in range(len(self._ranks)) for sample in self._sample(rank, there)]

    def _sample(self, rank: int, there: list[GpuUsage]) -> list[Usage]:
        percent, resident = self._ranks[rank].read()
        if resident is None:
            return []
        sample = Usage(
            rank=self._first + rank,
            step=None,
            cpu_percent=None if percent is None else round(percent, 1),
            memory_bytes=resident,
        )
        gpu = self._gpu_of(rank, there)
        if gpu is None:
            return [sample]
        return [
            replace(
                sample,
                gpu=gpu.index,
                gpu_percent=gpu.percent,
                gpu_memory_bytes=gpu.used_bytes,
                gpu_power_w=gpu.power_w,
                gpu_temperature_c=gpu.temperature_c,
            )
        ]

    def _gpu_of(self, rank: int, there: list[GpuUsage]) -> GpuUsage | None:
        """The GPU on which the driver sees the rank; in a container, where numbers of processes are
        others, the one it takes as a rule."""
        pids = {process.pid for process in self._ranks[rank].family()}
        seen = next((gpu for gpu in there if gpu.pids & pids), None)
        if seen is not None or rank >= len(self._gpus):
            return seen
        return next((gpu for gpu in there if gpu.index == self._gpus[rank]), None)

    def close(self) -> None:
        if self._meter is not None:
            self._meter.close()
