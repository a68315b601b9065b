"""What this process holds of its GPU: torch's allocator, and all the rest besides."""

from __future__ import annotations

import gc
import os
from contextlib import suppress
from typing import Any

import torch

from phalanx.machine.gpus import probe_gpus


def clear_device(device: torch.device) -> None:
    """Give back what nobody refers to any more, and begin the peaks anew."""
    gc.collect()
    if device.type != "cuda":
        return
    torch.cuda.synchronize(device)
    with suppress(AttributeError, RuntimeError):  # private; kept for each handle otherwise
        torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)


def context_bytes(device: torch.device) -> int | None:
    """What the process holds besides the allocator: CUDA's context, kernels, libraries. None when
    it cannot be told apart from other processes."""
    if device.type != "cuda":
        return None
    held = _held_bytes(device)
    return None if held is None else max(0, held - torch.cuda.memory_reserved(device))


def _held_bytes(device: torch.device) -> int | None:
    gpu = next((g for g in probe_gpus().gpus if _is_same(g.uuid, device)), None)
    processes = gpu.processes if gpu is not None else ()
    mine = [p.used_bytes for p in processes if p.pid == os.getpid()]
    if mine and mine[0]:
        return mine[0]
    if len(processes) > 1:
        return None
    # In a container the process has another number outside, or none is shown: with at most one on
    # the device, it is this one.
    if len(processes) == 1 and processes[0].used_bytes:
        return processes[0].used_bytes
    free, total = torch.cuda.mem_get_info(device)
    return total - free


def _is_same(uuid: str | None, device: torch.device) -> bool:
    properties: Any = torch.cuda.get_device_properties(device)
    mine = str(getattr(properties, "uuid", ""))
    return uuid is not None and uuid.removeprefix("GPU-") == mine.removeprefix("GPU-")
