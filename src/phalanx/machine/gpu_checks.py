"""Checks of the GPUs themselves: driver, visibility, who else uses them, heat, links."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from phalanx.errors import Finding, name_some
from phalanx.machine.facts import Gpu, Machine
from phalanx.machine.host_checks import gib

MAX_TEMPERATURE_C = 85
MAX_HELD_SHARE = 0.10


def check_driver(machine: Machine) -> Iterator[Finding]:
    if machine.driver == "broken":
        yield Finding(
            slug="driver-broken",
            severity="warning",
            what="the NVIDIA driver does not answer, 0 GPUs are known through it",
            why=f"NVML says: {machine.driver_error}",
            fix="run `nvidia-smi`; after a driver update reboot; in a container use "
            "`docker run --gpus all`; for a missing module `pip install nvidia-ml-py`",
        )
    for gpu in machine.gpus:
        if gpu.error is not None:
            yield Finding(
                slug="gpu-lost",
                severity="warning",
                what=f"GPU {gpu.index} of {len(machine.gpus)} cannot be reached",
                why=f"NVML says: {gpu.error}",
                fix="look for `Xid` in `sudo dmesg`; `sudo nvidia-smi --gpu-reset -i "
                f"{gpu.index}`, or reboot",
            )


def check_visible(machine: Machine) -> Iterator[Finding]:
    variable, total = machine.cuda_visible_devices, len(machine.gpus)
    if variable is None or total == 0 or machine.driver != "ok":
        return
    visible = len(machine.visible_gpus)
    setting = f"CUDA_VISIBLE_DEVICES={variable}"
    choices = ",".join(str(number) for number in range(total))
    if machine.cuda_visible_missing:
        yield Finding(
            slug="visible-missing",
            severity="error" if visible == 0 else "warning",
            what=f"`{setting}` names `{machine.cuda_visible_missing[0]}`, which is not one of "
            f"the {total} GPUs (or stands there twice): {visible} can be used",
            why="CUDA drops such an entry and every entry after it: "
            f"{', '.join(machine.cuda_visible_missing)}",
            fix=f"`export CUDA_VISIBLE_DEVICES={choices}`, or `unset CUDA_VISIBLE_DEVICES`",
        )
    elif visible == 0:
        yield Finding(
            slug="visible-none",
            severity="warning",
            what=f"`{setting}` hides all {total} GPUs, training runs on the CPU",
            why="an empty value or -1 shows CUDA no GPU; the variable is set in this shell",
            fix="`unset CUDA_VISIBLE_DEVICES` to use them",
        )


def name_gpus(gpus: Sequence[Gpu]) -> str:
    """`GPU 0, 3`, by the driver's numbers."""
    return "GPU " + ", ".join(str(gpu.index) for gpu in gpus)


def show_only(gpus: Sequence[Gpu]) -> str:
    """The shell line after which CUDA sees these GPUs alone; the order makes the numbers fit."""
    numbers = ",".join(str(gpu.index) for gpu in sorted(gpus, key=lambda gpu: gpu.index))
    return f"export CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES={numbers}"


def _held_bytes(gpu: Gpu) -> int:
    """What others hold; in a container the processes cannot be seen, the missing memory can."""
    named = sum(process.used_bytes or 0 for process in gpu.processes)
    if gpu.memory_total_bytes is None or gpu.memory_free_bytes is None:
        return named
    return max(named, gpu.memory_total_bytes - gpu.memory_free_bytes)


def _is_busy(gpu: Gpu) -> bool:
    return _held_bytes(gpu) > MAX_HELD_SHARE * (gpu.memory_total_bytes or 1 << 62)


def left_by_others(gpu: Gpu) -> int | None:
    """Memory that a run may have: all of it, or less where the check calls the GPU busy. The little
    that a driver or a desktop holds changes from start to start, and a plan should not."""
    if gpu.memory_total_bytes is None or not _is_busy(gpu):
        return gpu.memory_total_bytes
    return max(1, gpu.memory_total_bytes - _held_bytes(gpu))


def check_busy(machine: Machine) -> Iterator[Finding]:
    gpus = machine.visible_gpus
    busy = [gpu for gpu in gpus if _is_busy(gpu)]
    if busy:
        idle = [gpu for gpu in gpus if gpu not in busy]
        held = ", ".join(
            f"GPU {gpu.index} holds {gib(_held_bytes(gpu))} of {gib(gpu.memory_total_bytes or 0)}"
            for gpu in busy
        )
        yield Finding(
            slug="gpu-busy",
            severity="warning",
            what=f"{len(busy)} of {len(gpus)} GPUs are in use by others: {held}",
            why="; ".join(f"GPU {gpu.index}: {_holders(gpu)}" for gpu in busy),
            fix="wait, or end what holds them"
            + (f", or leave them out: `{show_only(idle)}`" if idle else ""),
        )


def _holders(gpu: Gpu) -> str:
    if not gpu.processes:
        return "processes that cannot be seen from here (another container or user)"
    named = [
        f"{process.name or 'a process'} (pid {process.pid}"
        + (f", {gib(process.used_bytes)})" if process.used_bytes is not None else ")")
        for process in gpu.processes
    ]
    return name_some(named)


def check_heat(machine: Machine) -> Iterator[Finding]:
    hot = [g for g in machine.visible_gpus if (g.temperature_c or 0) >= MAX_TEMPERATURE_C]
    if hot:
        numbers = ",".join(str(gpu.index) for gpu in hot)
        watts = int(min(gpu.power_limit_w or 300 for gpu in hot) * 0.8)
        yield Finding(
            slug="gpu-hot",
            severity="warning",
            what=", ".join(f"GPU {gpu.index} is at {gpu.temperature_c} C" for gpu in hot)
            + f" before training, {MAX_TEMPERATURE_C} C is too much",
            why="near its limit a GPU lowers its clock, and every other rank waits for it",
            fix="look at fans and airflow: `nvidia-smi -q -d TEMPERATURE,PERFORMANCE`; or lower "
            f"the power: `sudo nvidia-smi -i {numbers} -pl {watts}`",
        )


def check_mixed(machine: Machine) -> Iterator[Finding]:
    models = Counter(
        f"{gpu.name} {gib(gpu.memory_total_bytes or 0)}" for gpu in machine.visible_gpus
    )
    if len(models) > 1:
        listed = ", ".join(f"{count} x {name}" for name, count in models.most_common())
        best = models.most_common(1)[0][0]
        alike = [
            gpu
            for gpu in machine.visible_gpus
            if f"{gpu.name} {gib(gpu.memory_total_bytes or 0)}" == best
        ]
        yield Finding(
            slug="gpu-mixed",
            severity="warning",
            what=f"{len(models)} kinds of GPU: {listed}",
            why="every step waits for the slowest GPU, and the smallest memory bounds the batch of "
            "all; CUDA numbers the fastest first, unlike nvidia-smi",
            fix=f"use one kind: `{show_only(alike)}`",
        )


def check_links(machine: Machine) -> Iterator[Finding]:
    visible = {gpu.index for gpu in machine.visible_gpus}
    links = [link for link in machine.links if {link.first, link.second} <= visible]
    apart = [link for link in links if link.p2p is False]
    if apart:
        yield Finding(
            slug="p2p-missing",
            severity="note",
            what=f"{len(apart)} of {len(links)} GPU pairs cannot read each other's memory (P2P)",
            why="the driver says so; GeForce cards and some chipsets and virtual machines lack "
            "it. NCCL then goes through host memory, which is slower but correct",
            fix="nothing to do; if NCCL hangs at the first step: `export NCCL_P2P_DISABLE=1`, and "
            "on servers turn off ACS and IOMMU in the BIOS",
        )


def check_mig(machine: Machine) -> Iterator[Finding]:
    sliced = [gpu for gpu in machine.visible_gpus if gpu.is_mig]
    if sliced:
        yield Finding(
            slug="gpu-mig",
            severity="note",
            what=f"{len(sliced)} of {len(machine.visible_gpus)} GPUs are cut into slices (MIG): "
            f"{sum(len(gpu.mig_uuids) for gpu in sliced)} slices",
            why="a process sees one slice, and slices cannot reach each other with NCCL",
            fix="train on one slice (`export CUDA_VISIBLE_DEVICES=MIG-...` from `nvidia-smi -L`), "
            f"or join them: `sudo nvidia-smi -i {sliced[0].index} -mig 0`",
        )


GPU_CHECKS = (
    check_driver,
    check_visible,
    check_busy,
    check_heat,
    check_mixed,
    check_links,
    check_mig,
)
