"""A fake of the module `pynvml`: GPUs given as data, errors where real drivers raise them."""

# ruff: noqa: N802 - the names are NVML's

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

MIB = 1 << 20


class NVMLError(Exception):
    """Stands for every error of NVML."""


class NVMLError_LibraryNotFound(NVMLError):  # noqa: N801, N818 - the real name
    """What pynvml raises where no driver is installed."""


@dataclass
class FakeGpu:
    """One GPU of the fake driver; None is a call that the driver does not support."""

    name: str | bytes = "NVIDIA A100-SXM4-80GB"
    uuid: str = "GPU-aaaa0000"
    bus_id: str = "00000000:07:00.0"
    memory_mib: int | None = 81920
    used_mib: int = 700
    capability: tuple[int, int] | None = (8, 0)
    temperature: int | None = 30
    power_mw: int | None = 400_000
    utilization: int | None = 0
    mig: list[str] | None = None
    processes: dict[int, tuple[str, int | None]] = field(default_factory=dict)
    lanes: list[str] = field(default_factory=list)
    """Far ends of the active NVLink lanes: `switch`, `hidden`, or a bus id."""
    lost: bool = False


class FakePynvml:
    """Answers the calls that Phalanx makes; everything else raises AttributeError."""

    NVMLError = NVMLError

    def __init__(self, gpus, *, ancestor=50, p2p=0, p2p_nvlink=5, init_error=None):
        self.gpus = list(gpus)
        self.ancestor = ancestor if callable(ancestor) else lambda i, j: ancestor
        self.p2p = p2p
        self.p2p_nvlink = p2p_nvlink
        self.init_error = init_error
        self.open = 0

    def nvmlInit(self):
        if self.init_error is not None:
            raise self.init_error
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlDeviceGetCount(self):
        return len(self.gpus)

    def nvmlSystemGetDriverVersion(self):
        return "580.95.05"

    def nvmlSystemGetCudaDriverVersion_v2(self):
        return 13000

    def nvmlDeviceGetHandleByIndex(self, index):
        if self.gpus[index].lost:
            raise NVMLError("GPU is lost")
        return index

    def _known(self, value):
        if value is None:
            raise NVMLError("Not Supported")
        return value

    def nvmlDeviceGetName(self, handle):
        return self.gpus[handle].name

    def nvmlDeviceGetUUID(self, handle):
        return handle if isinstance(handle, str) else self.gpus[handle].uuid

    def nvmlDeviceGetMemoryInfo(self, handle):
        gpu = self.gpus[handle]
        total = self._known(gpu.memory_mib) * MIB
        used = gpu.used_mib * MIB
        return SimpleNamespace(total=total, free=total - used, used=used)

    def nvmlDeviceGetPciInfo(self, handle):
        return SimpleNamespace(busId=self.gpus[handle].bus_id)

    def nvmlDeviceGetCudaComputeCapability(self, handle):
        return self._known(self.gpus[handle].capability)

    def nvmlDeviceGetTemperature(self, handle, sensor):
        assert sensor == 0
        return self._known(self.gpus[handle].temperature)

    def nvmlDeviceGetPowerManagementLimit(self, handle):
        return self._known(self.gpus[handle].power_mw)

    def nvmlDeviceGetUtilizationRates(self, handle):
        return SimpleNamespace(gpu=self._known(self.gpus[handle].utilization))

    def nvmlDeviceGetMigMode(self, handle):
        self._known(self.gpus[handle].capability)
        return [1 if self.gpus[handle].mig is not None else 0, 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle):
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, slot):
        uuids = self.gpus[handle].mig or []
        if slot >= len(uuids):
            raise NVMLError("Not Found")
        return uuids[slot]

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return [
            SimpleNamespace(pid=pid, usedGpuMemory=None if mib is None else mib * MIB)
            for pid, (_, mib) in self.gpus[handle].processes.items()
        ]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle):
        raise NVMLError("Not Supported")

    def nvmlSystemGetProcessName(self, pid):
        return next(gpu.processes[pid][0] for gpu in self.gpus if pid in gpu.processes)

    def nvmlDeviceGetTopologyCommonAncestor(self, first, second):
        return self.ancestor(first, second)

    def nvmlDeviceGetP2PStatus(self, first, second, index):
        assert isinstance(index, int)  # pynvml's own constant for reading is a tuple by mistake
        return self._known({0: self.p2p, 2: self.p2p_nvlink}[index])

    def nvmlDeviceGetNvLinkState(self, handle, lane):
        if lane >= len(self.gpus[handle].lanes):
            raise NVMLError("Invalid Argument")
        return 1

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle, lane):
        end = self.gpus[handle].lanes[lane]
        return self._known({"switch": 2, "hidden": None}.get(end, 0))

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle, lane):
        end = self.gpus[handle].lanes[lane]
        return SimpleNamespace(busId=self._known(None if end == "hidden" else end))
