"""Remembers what torch answered about itself and the GPUs: asking costs an import of torch and a
start of CUDA, at every start of a job.

An answer counts while nothing that can be seen has changed (driver, GPUs, packages, variables, the
machine's last start) and for a day at most. `phalanx check` always asks. Whatever goes wrong here,
torch is asked.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from phalanx.codec import from_json, to_json
from phalanx.machine.facts import TorchFacts
from phalanx.machine.gpus import GpuInventory
from phalanx.machine.torch_child import TorchAnswer, ask_torch
from phalanx.prepare.trace_cache import installed
from phalanx.run.cache import cache_folder
from phalanx.run.directory import write_atomic

_LIFE_S = 24 * 3600
# Variables that change what torch, CUDA or the libraries under them find or can do.
_PREFIXES = ("CUDA", "TORCH", "PYTORCH", "ONEDNN", "DNNL", "MKL", "OMP", "NVIDIA", "HIP", "ROCR")
_NAMES = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONHOME")

AskTorch = Callable[[GpuInventory], TorchAnswer]


@dataclass(frozen=True)
class _Kept:
    """An answer on disk."""

    made: float
    facts: TorchFacts
    worker_env: dict[str, str]


def remembering_torch(ask: Callable[[], TorchAnswer] = ask_torch) -> AskTorch:
    """`ask` that keeps what it is answered, and answers from memory."""

    def asked(found: GpuInventory) -> TorchAnswer:
        file = cache_folder("torch") / f"{_key(found)}.json"
        known = _recall(file)
        if known is not None:
            return known
        answer = ask()
        # A torch or a driver with a problem may be mended at any time.
        if answer.facts is not None and all(probe.ok for probe in answer.facts.probes):
            _keep(file, answer.facts, answer.worker_env)
        return answer

    return asked


def _key(found: GpuInventory) -> str:
    variables = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(_PREFIXES) or name in _NAMES
    }
    boot = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8")
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    gpus = [f"{gpu.name} {gpu.uuid}" for gpu in found.gpus]
    about = [installed(), found.driver_version, found.driver_error, gpus, variables, boot, cores]
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:32]


def _recall(file: Path) -> TorchAnswer | None:
    try:
        kept = from_json(_Kept, json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None
    if not 0 <= time.time() - kept.made < _LIFE_S:
        return None
    return TorchAnswer(facts=kept.facts, worker_env=kept.worker_env)


def _keep(file: Path, facts: TorchFacts, worker_env: dict[str, str]) -> None:
    record = to_json(_Kept(time.time(), facts, worker_env))
    with suppress(OSError):  # a full or read-only disk: the next start asks again
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(file, json.dumps(record))
