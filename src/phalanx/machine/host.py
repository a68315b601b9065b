"""The host under the GPUs: cores, RAM, file systems, limits, within what cgroups allow."""

from __future__ import annotations

import math
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from phalanx.machine.facts import Cpu, Memory, Storage

# Distributions behind the optional parts of Phalanx; any name of a line will do.
_EXTRAS = {
    "scikit-learn": ("scikit-learn",),
    "torchvision": ("torchvision",),
    "triton": ("triton", "pytorch-triton"),
    "deepspeed": ("deepspeed",),
    "transformers": ("transformers",),
    "peft": ("peft",),
    "datasets": ("datasets",),
    "gguf": ("gguf",),
    "ultralytics": ("ultralytics",),
    "nicegui": ("nicegui",),
    "wandb": ("wandb",),
    "tensorboard": ("tensorboard",),
    "onnx": ("onnx",),
    "onnxscript": ("onnxscript",),
    "onnxruntime": ("onnxruntime", "onnxruntime-gpu"),
    "tensorrt": ("tensorrt", "tensorrt-cu13", "tensorrt-cu12"),
    "metaworld": ("metaworld",),
    "mujoco": ("mujoco",),
    "highway-env": ("highway-env",),
}


@dataclass(frozen=True, kw_only=True)
class CgroupLimits:
    """What the cgroup of this process leaves it; None is no limit."""

    memory_bytes: int | None = None
    memory_free_bytes: int | None = None
    cpu_cores: float | None = None


def probe_extras() -> dict[str, str]:
    """Optional packages that are installed, by metadata alone: none is imported."""
    from importlib.metadata import PackageNotFoundError, version

    found: dict[str, str] = {}
    for extra, names in _EXTRAS.items():
        for name in names:
            try:
                found[extra] = version(name)
                break
            except PackageNotFoundError:
                continue
    return found


def probe_cgroup(
    membership: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> CgroupLimits:
    """The tightest limits on the way from this process's cgroup to the root, v1 and v2.

    In a container the path in `membership` is often not there; its parents, up to the mount, are.
    """
    memory: list[tuple[int, int | None]] = []
    cores: list[float] = []
    for line in (_read(membership) or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            for top in (root, root / "unified"):
                for folder in _upwards(top, path):
                    _collect(memory, folder, "memory.max", "memory.current", "inactive_file")
                    quota = (_read(folder / "cpu.max") or "").split()
                    if len(quota) == 2 and quota[0] != "max":
                        cores.append(int(quota[0]) / int(quota[1]))
        if "memory" in controllers.split(","):
            for folder in _upwards(root / "memory", path):
                _collect(
                    memory,
                    folder,
                    "memory.limit_in_bytes",
                    "memory.usage_in_bytes",
                    "total_inactive_file",
                )
        if "cpu" in controllers.split(","):
            for folder in _upwards(root / "cpu", path):
                quota_us = _number(folder / "cpu.cfs_quota_us")
                period_us = _number(folder / "cpu.cfs_period_us")
                if quota_us and period_us and quota_us > 0:
                    cores.append(quota_us / period_us)
    free = [room for _, room in memory if room is not None]
    return CgroupLimits(
        memory_bytes=min((limit for limit, _ in memory), default=None),
        memory_free_bytes=min(free, default=None),
        cpu_cores=min(cores, default=None),
    )


def _upwards(top: Path, path: str) -> list[Path]:
    folder = top / path.strip("/")
    return [folder, *[parent for parent in folder.parents if parent.is_relative_to(top)]]


def _collect(
    found: list[tuple[int, int | None]], folder: Path, limit_file: str, usage_file: str, cache: str
) -> None:
    limit = _number(folder / limit_file)
    if limit is None or limit >= 1 << 60:  # v1 writes "no limit" as 2^63 rounded to a page
        return
    usage = _number(folder / usage_file)
    free = None
    if usage is not None:
        # The page cache counts as usage, yet the kernel gives it back before it kills anything.
        stat = dict(
            line.split()[:2]
            for line in (_read(folder / "memory.stat") or "").splitlines()
            if len(line.split()) == 2
        )
        free = max(0, limit - max(0, usage - int(stat.get(cache, 0))))
    found.append((limit, free))


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _number(path: Path) -> int | None:
    try:
        return int((_read(path) or "").strip())
    except ValueError:
        return None


def probe_cpu(limits: CgroupLimits) -> Cpu:
    """The processor within the affinity mask and the cgroup quota."""
    import psutil

    logical = psutil.cpu_count() or os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else logical
    quota = limits.cpu_cores
    return Cpu(
        model=cpu_model(),
        physical_cores=psutil.cpu_count(logical=False),
        logical_cores=logical,
        usable_cores=max(1, min(allowed, math.floor(quota) if quota is not None else allowed)),
        quota_cores=quota,
    )


def cpu_model() -> str:
    """The processor in its maker's words."""
    for line in (_read(Path("/proc/cpuinfo")) or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model") and value.strip():
            return value.strip()
    if sys.platform == "darwin":
        import subprocess

        try:
            brand = subprocess.run(
                ["sysctl", "-n", "machdep.cpu.brand_string"],
                capture_output=True,
                text=True,
                timeout=5,
                check=True,
            ).stdout.strip()
            return brand or platform.machine()
        except (OSError, subprocess.SubprocessError):
            return platform.machine()
    return platform.processor() or platform.machine()


def probe_memory(limits: CgroupLimits) -> Memory:
    """RAM within the cgroup limit."""
    import psutil

    ram = psutil.virtual_memory()
    available = ram.available
    if limits.memory_free_bytes is not None:
        available = min(available, limits.memory_free_bytes)
    limit = limits.memory_bytes
    if limit is not None and limit >= ram.total:
        limit = None
    return Memory(
        total_bytes=limit if limit is not None else ram.total,
        available_bytes=available,
        physical_bytes=ram.total,
        cgroup_limit_bytes=limit,
    )


def probe_storage(path: Path) -> Storage:
    """Room and write permission at `path`, or at its nearest existing parent."""
    place = path.expanduser().absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        usage = shutil.disk_usage(place)
        total, free = usage.total, usage.free
    except OSError:
        total, free = 0, 0
    writable = place.is_dir() and os.access(place, os.W_OK | os.X_OK)
    return Storage(path=str(path), total_bytes=total, free_bytes=free, writable=writable)


def probe_shm(path: Path = Path("/dev/shm")) -> Storage | None:  # noqa: S108 - asked, not used
    """The shared memory file system, where there is one."""
    return probe_storage(path) if path.is_dir() else None


def probe_open_files() -> tuple[int | None, int | None]:
    """The soft and hard limits of open files; None is unlimited, or unknown on Windows."""
    try:
        import resource
    except ImportError:
        return None, None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    infinite = resource.RLIM_INFINITY
    return (None if soft == infinite else soft, None if hard == infinite else hard)


def probe_os() -> str:
    """The system's name as its own users say it."""
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        if sys.platform == "darwin":
            return f"macOS {platform.mac_ver()[0]}"
        return f"{platform.system()} {platform.release()}"


def find_c_compiler() -> str | None:
    """What torch.compile would call: $CC, $CXX, or the usual names."""
    names = (os.environ.get("CC"), os.environ.get("CXX"), "g++", "gcc", "clang++", "clang", "cc")
    return next((path for name in names if name and (path := shutil.which(name))), None)
