"""Checks of torch against the driver and the GPUs, and of the precisions it was tried in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from phalanx.errors import Finding
from phalanx.machine.facts import Machine, TorchFacts
from phalanx.machine.gpu_checks import name_gpus, show_only

MIN_TORCH = (2, 10)
_TURING = (7, 5)
# Oldest driver of each CUDA major, within which every minor runs ("CUDA Compatibility", NVIDIA).
_OLDEST_DRIVER = {11: "450", 12: "525", 13: "580"}


def install_line(machine: Machine) -> str:
    """The pip line of the torch wheel that fits the driver and the GPUs of this machine."""
    cuda = machine.driver_cuda
    capabilities = [gpu.compute_capability for gpu in machine.gpus if gpu.compute_capability]
    if not machine.gpus:
        line = "pip install 'torch>=2.10'"
        if machine.architecture == "x86_64" and machine.driver == "absent":
            line += " --index-url https://download.pytorch.org/whl/cpu"
        return line
    if capabilities and min(capabilities) < _TURING:
        tag = "cu126"  # the last with kernels for Maxwell, Pascal and Volta
    elif cuda is not None and cuda[0] < 13:
        tag = "cu128"
    else:
        tag = "cu130"
    return f"pip install 'torch>=2.10' --index-url https://download.pytorch.org/whl/{tag}"


def runs_on(capability: tuple[int, int], arch_list: Sequence[str]) -> bool:
    """Whether a wheel with these kernels runs on a GPU of this compute capability.

    A binary `sm_80` runs on 8.0 and later of the same major (8.6, 8.9); PTX `compute_90` runs on
    9.0 and everything newer; a suffix `a` binds to that one GPU, `f` to its family.
    """
    for arch in arch_list:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", arch)
        if match is None:
            continue
        kind, major, minor, suffix = match.groups()
        built = (int(major), int(minor))
        if built == capability:
            return True
        if suffix == "a" or capability < built:
            continue
        if built[0] == capability[0] or (kind == "compute" and suffix == ""):
            return True
    return False


def check_torch(machine: Machine) -> Iterator[Finding]:
    if machine.torch is None:
        if not machine.torch_asked:
            return
        error = machine.torch_error or "it did not answer"
        if "No module named 'torch'" in error:
            yield Finding(
                slug="torch-missing",
                what="torch is not installed, Phalanx needs 2.10 or newer",
                why=f"`{machine.python_executable}` has no module `torch`",
                fix=f"`{install_line(machine)}`",
            )
        else:
            yield Finding(
                slug="torch-broken",
                what=f"torch does not start ({error.splitlines()[0]})",
                why=f"`{machine.python_executable}` was asked in a child process; its last "
                f"lines:\n{error}",
                fix=f"install it anew: `{install_line(machine)} --force-reinstall`",
            )
        return
    if _version(machine.torch.version) < MIN_TORCH:
        yield Finding(
            slug="torch-too-old",
            what=f"torch is {machine.torch.version}, Phalanx needs 2.10 or newer",
            why=f"it is the torch of `{machine.python_executable}`",
            fix=f"`{install_line(machine)} --upgrade`",
        )


def _version(text: str) -> tuple[int, int]:
    numbers = re.match(r"(\d+)\.(\d+)", text)
    return (int(numbers[1]), int(numbers[2])) if numbers else MIN_TORCH


def check_cuda(machine: Machine) -> Iterator[Finding]:
    """GPUs that torch cannot use at all: a CPU build, an old driver, a CUDA that will not start."""
    torch, gpus = machine.torch, machine.visible_gpus
    if torch is None or not gpus or torch.cuda_available:
        return
    what = f"{len(gpus)} x {gpus[0].name}, but torch {torch.version}"
    if torch.cuda_version is None and torch.hip_version is None:
        yield Finding(
            slug="torch-cpu-build",
            what=f"{what} is a CPU build and can use 0 of them",
            why="the wheel was built without CUDA (torch.version.cuda is None); training would "
            "run on the CPU",
            fix=f"`{install_line(machine)} --force-reinstall`, or train on the CPU on purpose "
            'with `CUDA_VISIBLE_DEVICES=""`',
        )
    elif (old := _old_driver(machine, torch)) is not None:
        yield old
    else:
        yield Finding(
            slug="cuda-unavailable",
            what=f"{what} cannot start CUDA and can use 0 of them",
            why=f"torch says: {torch.cuda_error or 'no device'} "
            f"(driver {machine.driver_version or 'unknown'})",
            fix="look at the GPUs with `nvidia-smi`; after a driver update reboot; in a container "
            "use `docker run --gpus all`; on NVSwitch machines "
            "`sudo systemctl restart nvidia-fabricmanager`",
        )


def _old_driver(machine: Machine, torch: TorchFacts) -> Finding | None:
    if machine.driver_cuda is None or torch.cuda_version is None:
        return None
    major = _version(torch.cuda_version)[0]
    if machine.driver_cuda[0] >= major:
        return None
    runs = ".".join(map(str, machine.driver_cuda))
    update = f"update the driver to {_OLDEST_DRIVER.get(major, 'the newest')} or newer"
    fits = machine.driver_cuda[0] >= 12
    return Finding(
        slug="driver-too-old",
        what=f"the driver runs CUDA {runs}, torch {torch.version} needs CUDA {major}.0",
        why=f"driver {machine.driver_version}; the wheel was built with CUDA "
        f"{torch.cuda_version}, and a driver runs every minor version of its own major and "
        "nothing newer",
        fix=f"`{install_line(machine)} --force-reinstall`, or {update}" if fits else update,
    )


def check_architecture(machine: Machine) -> Iterator[Finding]:
    """GPUs the wheel has no kernels for."""
    torch = machine.torch
    if torch is None or torch.cuda_version is None or not torch.arch_list:
        return
    gpus = machine.visible_gpus
    lacking = [
        gpu
        for gpu in gpus
        if gpu.compute_capability and not runs_on(gpu.compute_capability, torch.arch_list)
    ]
    for capability in sorted({g.compute_capability for g in lacking if g.compute_capability}):
        same = [gpu for gpu in lacking if gpu.compute_capability == capability]
        sm = f"sm_{capability[0]}{capability[1]}"
        rest = len(gpus) - len(lacking)
        yield Finding(
            slug="gpu-architecture",
            severity="error" if rest == 0 else "warning",
            what=f"torch {torch.version} has no kernels for {same[0].name} ({sm}): "
            f"{name_gpus(same)} cannot be used",
            why=f"the wheel was built for {' '.join(torch.arch_list)}; it leaves {rest} of "
            f"{len(gpus)} GPUs",
            fix=f"`{install_line(machine)} --force-reinstall`"
            + (
                ""
                if rest == 0
                else f", or leave them out: `{show_only([g for g in gpus if g not in lacking])}`"
            ),
        )


def check_nccl(machine: Machine) -> Iterator[Finding]:
    torch, num_gpus = machine.torch, len(machine.visible_gpus)
    if torch is not None and torch.cuda_available and num_gpus >= 2 and not torch.has_nccl:
        yield Finding(
            slug="nccl-missing",
            severity="warning",
            what=f"torch {torch.version} has no NCCL, {num_gpus} GPUs would talk through the CPU",
            why="torch.distributed.is_nccl_available() is False; gloo copies every gradient "
            "through host memory",
            fix=f"`{install_line(machine)} --force-reinstall` (Linux wheels have NCCL), or use "
            "one GPU",
        )


def check_precisions(machine: Machine) -> Iterator[Finding]:
    """The small matrix products that failed, were emulated, or needed help."""
    for probe in machine.torch.probes if machine.torch is not None else ():
        is_cuda = probe.device.startswith("cuda")
        if probe.needs_env:
            setting = " ".join(f"{key}={value}" for key, value in probe.needs_env.items())
            yield Finding(
                slug="bf16-needs-env",
                severity="note",
                what=f"{probe.precision} on the {probe.device.upper()} {probe.error}; "
                f"with {setting} it works",
                why="the processor announces AMX instructions that it cannot run, and oneDNN "
                "believes it; tried both ways in child processes",
                fix=f"nothing to do: Phalanx gives its ranks {setting}; for scripts of your own "
                f"`export {setting}`",
            )
        elif not probe.ok:
            stops = probe.precision == "fp32" and (is_cuda or machine.accelerator == "cpu")
            yield Finding(
                slug="precision-failed",
                severity="error" if stops else "warning",
                what=f"a {probe.precision} matrix product on {probe.device} fails: {probe.error}",
                why="tried with 256 x 256 numbers in a child process",
                fix="look at the GPU with `nvidia-smi -q -d ECC,PAGE_RETIREMENT` and at `dmesg`, "
                "or leave it out with CUDA_VISIBLE_DEVICES"
                if is_cuda
                else f"install torch anew: `{install_line(machine)} --force-reinstall`"
                if probe.precision == "fp32"
                else "use another precision: `precision=fp32`",
            )
        elif probe.native is False and probe.precision == "bf16":
            capability = ".".join(map(str, probe.compute_capability or ()))
            names = sorted(
                {
                    gpu.name
                    for gpu in machine.visible_gpus
                    if gpu.compute_capability == probe.compute_capability
                }
            )
            yield Finding(
                slug="bf16-emulated",
                severity="note",
                what=f"{', '.join(names) or probe.device} (compute capability {capability}) only "
                "emulates bf16, the hardware begins with 8.0",
                why="bf16 tensor cores came with Ampere; before it, bf16 saves memory but not time",
                fix="nothing to do: Phalanx takes fp16 with loss scaling here (`precision=fp16`)",
            )


TORCH_CHECKS = (check_torch, check_cuda, check_architecture, check_nccl, check_precisions)
