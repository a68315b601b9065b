"""What there is: the frozen objects of a machine and their JSON form.

Nothing here asks the hardware; `inventory.probe_machine` fills these in.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from phalanx.codec import from_json
from phalanx.errors import Finding, UserError

SCHEMA_VERSION = 1

Precision = Literal["fp32", "tf32", "bf16", "fp16"]


@dataclass(frozen=True, kw_only=True)
class Cpu:
    """The processor, and the part of it this process may use."""

    model: str
    physical_cores: int | None
    logical_cores: int
    usable_cores: int
    """Logical cores left by the affinity mask and the cgroup quota, rounded down, at least 1."""
    quota_cores: float | None = None
    """The cgroup's CPU quota in cores; None when there is none."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Host RAM within the cgroup limit."""

    total_bytes: int
    """Physical RAM, or the cgroup limit where that is lower."""
    available_bytes: int
    physical_bytes: int
    cgroup_limit_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Storage:
    """A file system: the output directory's, or /dev/shm."""

    path: str
    """What was asked for; the numbers are those of its nearest existing parent."""
    total_bytes: int
    free_bytes: int
    writable: bool


@dataclass(frozen=True, kw_only=True)
class GpuProcess:
    """A process that holds memory on a GPU."""

    pid: int
    name: str | None
    used_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU as the driver knows it; None is what the driver would not say."""

    index: int
    """The driver's number, in PCI bus order, as nvidia-smi shows it."""
    name: str
    uuid: str | None = None
    cuda_index: int | None = None
    """The number CUDA and torch give it; None when CUDA_VISIBLE_DEVICES hides it."""
    memory_total_bytes: int | None = None
    memory_free_bytes: int | None = None
    compute_capability: tuple[int, int] | None = None
    temperature_c: int | None = None
    power_limit_w: float | None = None
    utilization_percent: int | None = None
    pci_bus_id: str | None = None
    numa_node: int | None = None
    is_mig: bool = False
    mig_uuids: tuple[str, ...] = ()
    processes: tuple[GpuProcess, ...] = ()
    error: str | None = None
    """Why the driver cannot reach it (fallen off the bus); every other fact is then missing."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """The way between two GPUs, by driver index, first < second."""

    first: int
    second: int
    path: Literal["PIX", "PXB", "PHB", "NODE", "SYS", "SOC", "?"]
    """PCIe: one switch, several, host bridge, NUMA node, across nodes; SOC is one board."""
    nvlink_lanes: int = 0
    p2p: bool | None = None
    """One GPU can read the other's memory directly; None when the driver does not say."""
    gb_per_s: float | None = None
    """In one direction, as the catalogue has it; None for a machine that was asked."""

    @property
    def label(self) -> str:
        """As in `nvidia-smi topo -m`: `NV12` where there is NVLink, else the PCIe path."""
        return f"NV{self.nvlink_lanes}" if self.nvlink_lanes else self.path


@dataclass(frozen=True, kw_only=True)
class TorchDevice:
    """One CUDA device as torch sees it."""

    index: int
    name: str
    compute_capability: tuple[int, int]
    memory_total_bytes: int
    uuid: str | None = None


@dataclass(frozen=True, kw_only=True)
class PrecisionProbe:
    """The outcome of one small matrix product."""

    device: str
    """`cpu`, `mps` or `cuda:N`; one GPU stands for all of its compute capability."""
    precision: Precision
    ok: bool
    native: bool | None = None
    """The hardware has it, rather than emulates it; None on CPU and MPS."""
    compute_capability: tuple[int, int] | None = None
    error: str | None = None
    """What happened without `needs_env`; kept also when those variables cure it."""
    needs_env: dict[str, str] = field(default_factory=dict)
    """Environment variables without which the product fails."""


@dataclass(frozen=True, kw_only=True)
class TorchFacts:
    """What the torch of this Python says about itself, asked in a child process."""

    version: str
    cuda_version: str | None = None
    """The CUDA the wheel was built with; None for a CPU or ROCm build."""
    hip_version: str | None = None
    cuda_available: bool = False
    cuda_error: str | None = None
    arch_list: tuple[str, ...] = ()
    """Compute capabilities the wheel has kernels for: `sm_80`, `compute_120` (PTX), ..."""
    cudnn_version: int | None = None
    nccl_version: str | None = None
    has_nccl: bool = False
    has_gloo: bool = False
    has_mpi: bool = False
    has_mps: bool = False
    mps_memory_bytes: int | None = None
    """What Metal recommends as the most a process should use."""
    num_threads: int = 1
    devices: tuple[TorchDevice, ...] = ()
    probes: tuple[PrecisionProbe, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What there is on one node, at the moment it was asked."""

    schema_version: int = SCHEMA_VERSION
    probed_at: str
    """UTC, ISO 8601; `never` for a machine described in words (machine/spec.py)."""
    host: str
    os: str
    kernel: str
    architecture: str
    python_version: str
    python_executable: str
    cpu: Cpu
    memory: Memory
    shm: Storage | None = None
    """Where data workers pass batches (/dev/shm); None where the system has none."""
    samples: Storage | None = None
    """Where samples are kept on disk (`loader.cache: disk`); None: it was not looked at."""
    output: Storage
    open_files_soft: int | None = None
    """Open files a process may have; None is unlimited."""
    open_files_hard: int | None = None
    c_compiler: str | None = None
    """The C compiler torch.compile would call; None when there is none."""
    driver: Literal["ok", "absent", "broken"] = "absent"
    driver_error: str | None = None
    """Why there are no GPUs, in NVML's words."""
    driver_version: str | None = None
    driver_cuda: tuple[int, int] | None = None
    """The newest CUDA the driver runs."""
    cuda_visible_devices: str | None = None
    """The variable as it is set; None when it is not."""
    cuda_visible_missing: tuple[str, ...] = ()
    """Entries of the variable that name no GPU; CUDA ignores them and all after them."""
    gpus: tuple[Gpu, ...] = ()
    """All GPUs, also hidden ones; `visible_gpus` are those CUDA may use."""
    links: tuple[Link, ...] = ()
    torch: TorchFacts | None = None
    torch_error: str | None = None
    """The last lines of a torch that did not answer; None also when torch was not asked."""
    torch_asked: bool = True
    extras: dict[str, str] = field(default_factory=dict)
    """Optional packages that are installed, with their versions."""
    worker_env: dict[str, str] = field(default_factory=dict)
    """Environment variables every rank on this machine must be given."""
    environment: dict[str, str] = field(default_factory=dict)
    """NCCL_*, GLOO_* and TORCH_* as the user has set them; names like secrets are left out."""
    nodes: int = 1
    """Nodes like this one; every other fact is that of a single node."""
    node_link_gbps: float | None = None
    """The network of one node, gigabits per second in one direction; None: unknown, or one node."""
    hosts: tuple[str, ...] = ()
    """The nodes that have met, by name and address; empty for one node, or for a description."""
    assumed: tuple[str, ...] = ()
    """What was taken for granted of a machine described in words; empty for one that was asked."""

    @property
    def visible_gpus(self) -> tuple[Gpu, ...]:
        """The GPUs CUDA may use, in CUDA's order."""
        seen = [gpu for gpu in self.gpus if gpu.cuda_index is not None]
        return tuple(sorted(seen, key=lambda gpu: gpu.cuda_index or 0))

    @property
    def title(self) -> str:
        """The machine in a few words: as it was described, or its name and its GPUs."""
        if self.assumed:
            return self.host
        kinds: dict[str, int] = {}
        for gpu in self.visible_gpus:
            kinds[gpu.name] = kinds.get(gpu.name, 0) + 1
        cards = " and ".join(f"{count}x {name}" for name, count in kinds.items())
        return f"{self.host} ({cards or self.accelerator})"

    @property
    def accelerator(self) -> Literal["cuda", "mps", "cpu"]:
        """The kind of device training runs on here."""
        if self.torch is not None and self.torch.cuda_available and self.visible_gpus:
            return "cuda"
        return "mps" if self.torch is not None and self.torch.has_mps else "cpu"

    def precisions(
        self, gpu: Gpu | None = None, *, device: str | None = None
    ) -> frozenset[Precision]:
        """The precisions proved on this GPU, or on `device` (`cpu`, `mps`), none emulated.

        The ranks need `worker_env` for them.
        """
        probes = self.torch.probes if self.torch is not None else ()
        host = device or ("mps" if self.accelerator == "mps" else "cpu")
        return frozenset(
            probe.precision
            for probe in probes
            if probe.ok
            and probe.native is not False
            and (
                probe.device == host
                if gpu is None
                else probe.device.startswith("cuda")
                and probe.compute_capability == gpu.compute_capability
            )
        )

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Machine:
        """Return the machine that a JSON object holds, by this version of the schema; raises
        UserError for another version and ValueError for what is no machine."""
        version = data.get("schema_version")
        if version != SCHEMA_VERSION:
            raise UserError(
                Finding(
                    slug="machine-schema",
                    what=f"machine.json has schema version {version}, "
                    f"this Phalanx reads {SCHEMA_VERSION}",
                    why="the file was written by another version of Phalanx",
                    fix="phalanx check --json writes the machine anew",
                )
            )
        return from_json(cls, data)

    @classmethod
    def read(cls, file: Path) -> Machine | None:
        """Return the machine in a run's machine.json; None where none can be read."""
        try:
            return cls.from_json(json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, AttributeError, UserError):
            return None
