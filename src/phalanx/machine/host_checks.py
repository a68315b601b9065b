"""Checks of the host: Python, disk, shared memory, open files, RAM, cores, compiler."""

from __future__ import annotations

from collections.abc import Iterator

from phalanx.errors import Finding
from phalanx.machine.facts import Machine

GIB = 1 << 30
MIN_PYTHON = (3, 11)
MIN_DISK_BYTES = 5 * GIB
MIN_SHM_BYTES = 1 * GIB
MIN_RAM_BYTES = 2 * GIB
MIN_OPEN_FILES = 4096
MIN_CORES_PER_GPU = 2  # one to drive the GPU, one to load data


def gib(num_bytes: int) -> str:
    """`23.6 GiB`; below 0.1 GiB in MiB."""
    return f"{num_bytes / GIB:.1f} GiB" if num_bytes >= GIB // 10 else f"{num_bytes >> 20} MiB"


def check_python(machine: Machine) -> Iterator[Finding]:
    version = tuple(int(part) for part in machine.python_version.split(".")[:2])
    if version < MIN_PYTHON:
        yield Finding(
            slug="python-too-old",
            what=f"Python is {machine.python_version}, Phalanx needs 3.11 or newer",
            why=f"`{machine.python_executable}` runs this command",
            fix="make an environment with a newer one: `uv venv --python 3.12` or "
            "`conda create -n phalanx python=3.12`",
        )


def check_output(machine: Machine) -> Iterator[Finding]:
    output = machine.output
    if not output.writable:
        yield Finding(
            slug="output-not-writable",
            what=f"the output directory `{output.path}` cannot be written",
            why="it, or its nearest existing parent, is not a directory with write permission "
            "for this user",
            fix="choose another with `--output DIR`, or mend the permission: "
            f"`sudo chown $USER {output.path}`",
        )
    elif output.free_bytes < MIN_DISK_BYTES:
        yield Finding(
            slug="disk-low",
            severity="warning",
            what=f"{gib(output.free_bytes)} free for output, at least "
            f"{gib(MIN_DISK_BYTES)} is advised",
            why=f"the file system of `{output.path}` has {gib(output.total_bytes)}; a checkpoint "
            "holds weights and optimizer state, and the old one goes only after the new one",
            fix="free some room, or choose another disk with `--output DIR`",
        )


def check_shm(machine: Machine) -> Iterator[Finding]:
    shm = machine.shm
    if shm is not None and shm.total_bytes < MIN_SHM_BYTES:
        yield Finding(
            slug="shm-small",
            severity="warning",
            what=f"{shm.path} has {gib(shm.total_bytes)}, at least {gib(MIN_SHM_BYTES)} is advised",
            why="data workers and NCCL pass data through it; Docker gives a container 64 MiB, and "
            "a full one ends workers with `Bus error`",
            fix="start the container with `--shm-size=16g` (or `--ipc=host`), or "
            "`sudo mount -o remount,size=16G /dev/shm`",
        )


def check_open_files(machine: Machine) -> Iterator[Finding]:
    soft = machine.open_files_soft
    if soft is not None and soft < MIN_OPEN_FILES:
        hard = machine.open_files_hard
        limit = 65535 if hard is None else min(65535, hard)
        yield Finding(
            slug="open-files-low",
            severity="warning",
            what=f"a process may open {soft} files, at least {MIN_OPEN_FILES} is advised",
            why="the soft limit of RLIMIT_NOFILE; each data worker holds pipes and shared tensors, "
            "and runs out with `Too many open files` "
            f"(hard limit: {'none' if hard is None else hard})",
            fix=f"`ulimit -n {limit}` in the shell that starts training"
            + (
                "; above the hard limit: /etc/security/limits.conf, or Docker's "
                "`--ulimit nofile=65535`"
                if limit < 65535
                else ""
            ),
        )


def check_ram(machine: Machine) -> Iterator[Finding]:
    memory = machine.memory
    if memory.available_bytes < MIN_RAM_BYTES:
        limited = (
            f"the cgroup (container or job) allows {gib(memory.total_bytes)} of "
            f"{gib(memory.physical_bytes)}"
            if memory.cgroup_limit_bytes is not None
            else f"the machine has {gib(memory.total_bytes)}, other processes hold the rest"
        )
        yield Finding(
            slug="ram-low",
            severity="warning",
            what=f"{gib(memory.available_bytes)} of RAM available, at least "
            f"{gib(MIN_RAM_BYTES)} is advised",
            why=f"{limited}; importing torch takes about 0.5 GiB in every rank and data worker",
            fix="end other programs, or ask for more: `docker run --memory 16g`, "
            "`#SBATCH --mem=16G`",
        )


def check_cores(machine: Machine) -> Iterator[Finding]:
    cpu, num_gpus = machine.cpu, len(machine.visible_gpus)
    if cpu.usable_cores < MIN_CORES_PER_GPU * num_gpus:
        limit = (
            f"a cgroup quota of {cpu.quota_cores:g} cores"
            if cpu.quota_cores is not None
            else "the affinity mask"
            if cpu.usable_cores < cpu.logical_cores
            else "the processor"
        )
        yield Finding(
            slug="few-cores",
            severity="warning",
            what=f"{cpu.usable_cores} CPU cores for {num_gpus} GPUs, at least "
            f"{MIN_CORES_PER_GPU * num_gpus} are advised",
            why=f"{limit} leaves {cpu.usable_cores} of {cpu.logical_cores}; each rank needs one "
            "core to drive its GPU and one to load data, or the GPUs wait",
            fix=f"ask for more: `#SBATCH --cpus-per-task={8 * num_gpus}`, "
            f"`docker run --cpus {8 * num_gpus}`",
        )


def check_compiler(machine: Machine) -> Iterator[Finding]:
    if machine.c_compiler is None:
        yield Finding(
            slug="compiler-missing",
            severity="note",
            what="no C compiler was found, torch.compile cannot be used",
            why="looked for $CC, $CXX, g++, gcc, clang and cc in PATH; training runs uncompiled",
            fix="`sudo apt install build-essential`, or "
            "`conda install -c conda-forge cxx-compiler`",
        )


HOST_CHECKS = (
    check_python,
    check_output,
    check_shm,
    check_open_files,
    check_ram,
    check_cores,
    check_compiler,
)
