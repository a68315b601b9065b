"""`phalanx check`: what there is on this machine, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.errors import ExitCode, errors_of
from phalanx.output import console

if TYPE_CHECKING:
    from phalanx.machine.facts import Gpu, Machine, TorchFacts

_GIB = 1 << 30
_MATRIX_GPUS = 15  # a label and 15 columns of `NODE ` are 77 of 80 characters
_HEADER = ("GPU", "name", "free", "GiB", "cc", "C", "W", "busy", "NUMA", "used by")


def check(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print machine and findings as JSON, nothing else.")
    ] = False,
    output: Annotated[
        Path, typer.Option("--output", metavar="DIR", help="Where runs will be written.")
    ] = Path("runs"),
) -> int:
    """Show what this machine can train on, and what stands in the way.

    Exit code 3 when it cannot train. A machine without a GPU can.

    Examples: `phalanx check`, `phalanx check --output /scratch/runs --json`
    """
    from phalanx.codec import to_json
    from phalanx.machine import check_machine, probe_machine

    with console.working("asking torch"):
        machine = probe_machine(output)
    findings = check_machine(machine)
    if as_json:
        console.say_json({"machine": to_json(machine), "findings": to_json(findings)})
    else:
        show_machine(machine)
        if findings:
            console.say()
        console.show_findings(findings)
    return int(ExitCode.MACHINE if errors_of(findings) else ExitCode.OK)


def show_machine(machine: Machine) -> None:
    """The machine in one screen."""
    console.table(_host_rows(machine))
    if machine.gpus:
        console.say()
        for line in _aligned([_HEADER, *map(_gpu_row, machine.gpus)], left=(1, 9)):
            console.say(line)
    for line in _link_lines(machine):
        console.say(line)


def _aligned(
    rows: Sequence[Sequence[str]], *, left: Sequence[int] = (), gap: str = "  "
) -> Iterator[str]:
    """Plain columns, narrower than `console.table` draws them: 16 GPUs must fit 80 characters."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if index in left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield gap.join(cells).rstrip()


def _host_rows(machine: Machine) -> Iterator[tuple[str, str]]:
    cpu, memory, out = machine.cpu, machine.memory, machine.output
    yield "host", f"{machine.host}: {machine.os}, {machine.architecture}, kernel {machine.kernel}"
    yield "python", machine.python_version
    cores = cpu.physical_cores or "?"
    threads = f"{cpu.logical_cores} threads, {cpu.usable_cores} usable"
    yield "cpu", f"{cpu.model}: {cores} cores, {threads}"
    limit = " (cgroup limit)" if memory.cgroup_limit_bytes is not None else ""
    shm = f"{_gib(machine.shm.free_bytes)} GiB free in /dev/shm" if machine.shm else ""
    available = f"{_gib(memory.available_bytes)} of {_gib(memory.total_bytes)} GiB available"
    yield "memory", "; ".join(filter(None, (f"{available}{limit}", shm)))
    access = "can be written to" if out.writable else "not writable"
    yield "output", f"{out.path}: {_gib(out.free_bytes)} GiB free, {access}"
    soft, hard = machine.open_files_soft, machine.open_files_hard
    yield "limits", f"{soft or 'unlimited'} open files ({hard or 'unlimited'} at most)"
    yield "driver", _driver(machine)
    yield "torch", _torch(machine.torch) if machine.torch else "does not answer"
    yield from _precisions(machine)
    for name, value in machine.worker_env.items():
        yield "ranks get", f"{name}={value}"
    installed = ", ".join(f"{name} {version}" for name, version in machine.extras.items())
    yield "extras", installed or "none installed"


def _driver(machine: Machine) -> str:
    if machine.driver == "absent":
        return "no NVIDIA driver"
    if machine.driver == "broken":
        return f"does not answer ({machine.driver_error})"
    cuda = (
        f", CUDA {machine.driver_cuda[0]}.{machine.driver_cuda[1]}" if machine.driver_cuda else ""
    )
    seen = f"{len(machine.visible_gpus)} of {len(machine.gpus)} GPUs visible"
    variable = machine.cuda_visible_devices
    setting = f" (CUDA_VISIBLE_DEVICES={variable})" if variable is not None else ""
    return f"NVIDIA {machine.driver_version or '?'}{cuda}; {seen}{setting}"


def _torch(torch: TorchFacts) -> str:
    if torch.cuda_version:
        build = f"CUDA {torch.cuda_version}" + ("" if torch.cuda_available else " (unavailable)")
    else:
        build = f"ROCm {torch.hip_version}" if torch.hip_version else "no CUDA"
    parts = [torch.version, build]
    if torch.cudnn_version:
        parts.append(f"cuDNN {torch.cudnn_version}")
    if torch.has_nccl:
        parts.append(f"NCCL {torch.nccl_version or ''}".strip())
    parts += [name for name, has in (("gloo", torch.has_gloo), ("MPI", torch.has_mpi)) if has]
    if torch.has_mps:
        parts.append("MPS")
    return ", ".join([*parts, f"{torch.num_threads} threads"])


def _precisions(machine: Machine) -> Iterator[tuple[str, str]]:
    """One line per device tried: what works, what is emulated, what fails."""
    devices: dict[str, list[str]] = {}
    for probe in machine.torch.probes if machine.torch else ():
        state = "" if probe.ok else " fails"
        if probe.ok and probe.native is False:
            state = " emulated"
        devices.setdefault(probe.device, []).append(f"{probe.precision}{state}")
    for device, tried in devices.items():
        yield f"on {device}", ", ".join(tried)


def _gpu_row(gpu: Gpu) -> tuple[str, ...]:
    names = [f"{process.name or '?'} {process.pid}" for process in gpu.processes]
    users = ", ".join(names[:2]) + (f" +{len(names) - 2}" if len(names) > 2 else "")
    if gpu.error is not None:
        users = "lost"
    elif gpu.cuda_index is None:
        users = "hidden" + (f"; {users}" if users else "")
    capability = gpu.compute_capability
    return (
        str(gpu.index),
        gpu.name.removeprefix("NVIDIA ") + (" MIG" if gpu.is_mig else ""),
        _gib(gpu.memory_free_bytes),
        _gib(gpu.memory_total_bytes),
        f"{capability[0]}.{capability[1]}" if capability else "-",
        _known(gpu.temperature_c),
        "-" if gpu.power_limit_w is None else f"{gpu.power_limit_w:.0f}",
        "-" if gpu.utilization_percent is None else f"{gpu.utilization_percent}%",
        _known(gpu.numa_node),
        users,
    )


def _link_lines(machine: Machine) -> Iterator[str]:
    """How the GPUs are joined: one line if all alike, a matrix, or groups if that is too wide."""
    from phalanx.machine import link_matrix
    from phalanx.machine.topology import link_groups

    links = machine.links
    if not links:
        return
    labels = {link.label for link in links}
    num_p2p = sum(link.p2p is True for link in links)
    p2p = f"P2P in {num_p2p} of {len(links)} pairs"
    yield ""
    if len(labels) == 1:
        yield f"links: {labels.pop()} between {len(machine.gpus)} GPUs, {p2p}"
        return
    yield f"links: {p2p}"
    numbers = [str(gpu.index) for gpu in machine.gpus]
    if len(numbers) <= _MATRIX_GPUS:
        rows = link_matrix(machine.gpus, links)
        matrix = [(n, *row) for n, row in zip(numbers, rows, strict=True)]
        yield from _aligned([("", *numbers), *matrix], gap=" ")
        return
    for label, groups in link_groups(machine.gpus, links):
        listed = " | ".join(",".join(str(index) for index in group) for group in groups)
        yield f"  {label:<4}  {listed}"


def _gib(num_bytes: int | None) -> str:
    return "-" if num_bytes is None else f"{num_bytes / _GIB:.1f}"


def _known(value: int | None) -> str:
    return "-" if value is None else str(value)
