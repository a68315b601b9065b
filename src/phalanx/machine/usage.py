"""What GPUs and processes use right now, asked again and again: opened once, cheap to read."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from phalanx.machine.topology import ask_nvml


@dataclass(frozen=True, kw_only=True)
class GpuUsage:
    """One GPU at one moment; None is what the driver would not say."""

    index: int
    percent: int | None
    used_bytes: int | None
    power_w: float | None
    temperature_c: int | None
    pids: frozenset[int]
    """Processes that hold memory on it, by the numbers the driver knows."""


class GpuMeter:
    """Reads all GPUs; of a machine without a driver none."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: dict[int, Any] = {}
        with suppress(Exception):
            import pynvml as nvml

            nvml.nvmlInit()
            self._nvml = nvml
            for index in range(ask_nvml(nvml, "nvmlDeviceGetCount") or 0):
                with suppress(Exception):
                    self._handles[index] = nvml.nvmlDeviceGetHandleByIndex(index)

    def read(self) -> list[GpuUsage]:
        return [self._read(index, handle) for index, handle in self._handles.items()]

    def _read(self, index: int, handle: Any) -> GpuUsage:
        nvml = self._nvml
        rates = ask_nvml(nvml, "nvmlDeviceGetUtilizationRates", handle)
        memory = ask_nvml(nvml, "nvmlDeviceGetMemoryInfo", handle)
        power_mw = ask_nvml(nvml, "nvmlDeviceGetPowerUsage", handle)
        running = ask_nvml(nvml, "nvmlDeviceGetComputeRunningProcesses", handle) or ()
        return GpuUsage(
            index=index,
            percent=getattr(rates, "gpu", None),
            used_bytes=getattr(memory, "used", None),
            power_w=power_mw / 1000 if power_mw else None,
            temperature_c=ask_nvml(nvml, "nvmlDeviceGetTemperature", handle, 0),
            pids=frozenset(int(process.pid) for process in running),
        )

    def close(self) -> None:
        if self._nvml is not None:
            with suppress(Exception):
                self._nvml.nvmlShutdown()


class ProcessMeter:
    """Reads a process together with what it started."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before: tuple[float, float] | None = None

    def family(self) -> list[psutil.Process]:
        found = []
        for pid in _family(self._pid):
            with suppress(psutil.Error):
                found.append(psutil.Process(pid))
        return found

    def read(self) -> tuple[float | None, int | None]:
        """(CPU per cent since the last reading, 100 is one core; resident bytes). None when it is
        gone, and of the CPU the first time. Pages that processes share count in each."""
        used_s, resident = 0.0, 0
        for process in self.family():
            with suppress(psutil.Error):
                times = process.cpu_times()
                used_s += times.user + times.system
                resident += process.memory_info().rss
        if resident == 0:  # gone, or ended and not yet waited for
            return None, None
        now, before = time.monotonic(), self._before
        self._before = (now, used_s)
        if before is None or now <= before[0]:
            return None, resident
        # What a process used that has ended meanwhile is no longer counted.
        return max(0.0, 100 * (used_s - before[1]) / (now - before[0])), resident


def _family(pid: int) -> list[int]:
    """A process and all that it started. On Linux every thread has a list of its children: psutil
    looks at every process of the machine instead, which on a large one takes 50 ms for each."""
    if not Path(f"/proc/{pid}/task/{pid}/children").exists():
        try:
            return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
        except psutil.Error:
            return []
    family, at = [pid], 0
    while at < len(family):
        with suppress(OSError):
            for thread in os.scandir(f"/proc/{family[at]}/task"):
                with suppress(OSError), Path(thread.path, "children").open("rb") as children:
                    family += map(int, children.read().split())
        at += 1
    return family
