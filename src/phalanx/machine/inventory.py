"""Fills in a `Machine`: psutil and cgroups for the host, NVML for the GPUs, a child for torch."""

from __future__ import annotations

import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from phalanx.machine import gpus as gpu_facts
from phalanx.machine import host
from phalanx.machine.environment import communication_variables
from phalanx.machine.facts import Machine

if TYPE_CHECKING:
    from collections.abc import Callable

    from phalanx.machine.torch_child import TorchAnswer

    AskTorch = Callable[[gpu_facts.GpuInventory], TorchAnswer]


def probe_machine(
    output: Path | None = None,
    *,
    samples: Path | None = None,
    with_torch: bool = True,
    ask: AskTorch | None = None,
) -> Machine:
    """Ask this machine what there is; never raises for a broken driver or torch.

    `output` is where runs will be written, `samples` where samples are kept. Without torch it takes
    a tenth of a second; with it, one `import torch` in a child and a start of CUDA there, unless
    `ask` knows the answer.
    """
    limits = host.probe_cgroup()
    soft, hard = host.probe_open_files()
    variable = os.environ.get("CUDA_VISIBLE_DEVICES")
    # Before torch: its child would show up among the processes that hold GPU memory.
    found = gpu_facts.probe_gpus()
    gpus, missing = gpu_facts.number_visible(found.gpus, variable)
    facts, error, worker_env = None, None, {}
    if with_torch:
        from phalanx.machine.torch_child import ask_torch

        answer = ask_torch() if ask is None else ask(found)
        facts, error, worker_env = answer.facts, answer.error, answer.worker_env
        if facts is not None:
            gpus = gpu_facts.number_by_torch(gpus, facts)
    return Machine(
        probed_at=datetime.now(UTC).isoformat(timespec="seconds"),
        host=platform.node(),
        os=host.probe_os(),
        kernel=platform.release(),
        architecture=platform.machine(),
        python_version=platform.python_version(),
        python_executable=sys.executable,
        cpu=host.probe_cpu(limits),
        memory=host.probe_memory(limits),
        shm=host.probe_shm(),
        samples=host.probe_storage(samples) if samples is not None else None,
        output=host.probe_storage(output if output is not None else Path()),
        open_files_soft=soft,
        open_files_hard=hard,
        c_compiler=host.find_c_compiler(),
        driver=found.driver,
        driver_error=found.driver_error,
        driver_version=found.driver_version,
        driver_cuda=found.driver_cuda,
        cuda_visible_devices=variable,
        cuda_visible_missing=missing,
        gpus=gpus,
        links=found.links,
        torch=facts,
        torch_error=error,
        torch_asked=with_torch,
        extras=host.probe_extras(),
        worker_env=worker_env,
        environment=communication_variables(os.environ),
    )
