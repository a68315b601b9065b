"""The GPUs as NVML knows them, and which of them CUDA may use; torch is not asked."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from phalanx.machine.facts import Gpu, GpuProcess, Link, TorchFacts
from phalanx.machine.topology import ask_nvml, probe_links


@dataclass(frozen=True, kw_only=True)
class GpuInventory:
    """All that NVML told in one sitting."""

    driver: Literal["ok", "absent", "broken"]
    driver_error: str | None = None
    driver_version: str | None = None
    driver_cuda: tuple[int, int] | None = None
    gpus: tuple[Gpu, ...] = ()
    links: tuple[Link, ...] = ()


_DRIVER_FILES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/dev/kfd")


def may_have_cuda() -> bool:
    """Whether a driver's device files are there, told at once; `probe_gpus` knows it for sure."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1"):
        return False
    return os.name == "nt" or any(Path(name).exists() for name in _DRIVER_FILES)


def probe_gpus() -> GpuInventory:
    """Every GPU the driver knows, also those CUDA_VISIBLE_DEVICES hides."""
    try:
        import pynvml as nvml
    except Exception as error:
        return GpuInventory(driver="broken", driver_error=f"pynvml: {error}")
    try:
        nvml.nvmlInit()
    except Exception as error:
        absent = type(error).__name__ == "NVMLError_LibraryNotFound"
        return GpuInventory(driver="absent" if absent else "broken", driver_error=str(error))
    try:
        handles = [
            _handle(nvml, index) for index in range(ask_nvml(nvml, "nvmlDeviceGetCount") or 0)
        ]
        cuda = ask_nvml(nvml, "nvmlSystemGetCudaDriverVersion_v2")
        return GpuInventory(
            driver="ok",
            driver_version=_text(ask_nvml(nvml, "nvmlSystemGetDriverVersion")),
            # 13000 is CUDA 13.0, 12080 is 12.8
            driver_cuda=(cuda // 1000, cuda % 1000 // 10) if cuda else None,
            gpus=tuple(_gpu(nvml, index, handle) for index, handle in enumerate(handles)),
            links=probe_links(nvml, handles),
        )
    finally:
        with suppress(Exception):
            nvml.nvmlShutdown()


def _handle(nvml: Any, index: int) -> Any:
    """The handle of a GPU, or the error that says why it cannot be reached."""
    try:
        return nvml.nvmlDeviceGetHandleByIndex(index)
    except Exception as error:
        return error


def _gpu(nvml: Any, index: int, handle: Any) -> Gpu:
    if isinstance(handle, Exception):
        return Gpu(index=index, name="unknown GPU", error=str(handle))
    memory = ask_nvml(nvml, "nvmlDeviceGetMemoryInfo", handle)
    pci = ask_nvml(nvml, "nvmlDeviceGetPciInfo", handle)
    bus_id = _text(getattr(pci, "busId", None))
    power_mw = ask_nvml(nvml, "nvmlDeviceGetPowerManagementLimit", handle)
    rates = ask_nvml(nvml, "nvmlDeviceGetUtilizationRates", handle)
    capability = ask_nvml(nvml, "nvmlDeviceGetCudaComputeCapability", handle)
    mig_mode = ask_nvml(nvml, "nvmlDeviceGetMigMode", handle)
    is_mig = bool(mig_mode and mig_mode[0] == 1)
    return Gpu(
        index=index,
        name=_text(ask_nvml(nvml, "nvmlDeviceGetName", handle)) or "unknown GPU",
        uuid=_text(ask_nvml(nvml, "nvmlDeviceGetUUID", handle)),
        memory_total_bytes=_count(getattr(memory, "total", None)),
        memory_free_bytes=_count(getattr(memory, "free", None)),
        compute_capability=(int(capability[0]), int(capability[1])) if capability else None,
        temperature_c=ask_nvml(
            nvml, "nvmlDeviceGetTemperature", handle, 0
        ),  # 0: the GPU's own sensor
        power_limit_w=power_mw / 1000 if power_mw else None,
        utilization_percent=_count(getattr(rates, "gpu", None)),
        pci_bus_id=bus_id,
        numa_node=numa_node(bus_id) if bus_id else None,
        is_mig=is_mig,
        mig_uuids=_mig_uuids(nvml, handle) if is_mig else (),
        processes=_processes(nvml, handle),
    )


def _processes(nvml: Any, handle: Any) -> tuple[GpuProcess, ...]:
    found: dict[int, GpuProcess] = {}
    for kind in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
        for process in ask_nvml(nvml, kind, handle) or ():
            # The name may carry the arguments; only the program is kept, for those may be private.
            line = (_text(ask_nvml(nvml, "nvmlSystemGetProcessName", process.pid)) or "").split()
            found[process.pid] = GpuProcess(
                pid=int(process.pid),
                name=Path(line[0]).name if line else None,
                used_bytes=_count(process.usedGpuMemory),
            )
    return tuple(found.values())


def _mig_uuids(nvml: Any, handle: Any) -> tuple[str, ...]:
    slots = ask_nvml(nvml, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0
    parts = [
        ask_nvml(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle, slot) for slot in range(slots)
    ]
    uuids = [_text(ask_nvml(nvml, "nvmlDeviceGetUUID", part)) for part in parts if part is not None]
    return tuple(uuid for uuid in uuids if uuid)


def numa_node(bus_id: str, devices: Path = Path("/sys/bus/pci/devices")) -> int | None:
    """The NUMA node of a PCI device, from sysfs.

    NVML's own numa call speaks of GPU memory on Grace, not of the CPUs beside the GPU.
    """
    domain, _, rest = bus_id.lower().partition(":")
    try:
        node = int((devices / f"{domain[-4:]}:{rest}" / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _text(value: Any) -> str | None:
    if isinstance(value, bytes):  # pynvml before 11.5
        return value.decode(errors="replace")
    return value if isinstance(value, str) else None


def _count(value: Any) -> int | None:
    """A number of NVML; its largest value means not available."""
    return int(value) if value is not None and 0 <= value < (1 << 64) - 1 else None


def number_visible(
    gpus: Sequence[Gpu], variable: str | None
) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
    """Give each GPU that CUDA_VISIBLE_DEVICES shows its CUDA number; also the entries in error.

    CUDA reads entries until the first bad one, -1 included; a repeated one hides every GPU.
    """
    present = [gpu for gpu in gpus if gpu.error is None]
    if variable is None:
        order, missing = [gpu.index for gpu in present], list[str]()
    else:
        order, missing = _read_visible(present, variable)
    numbers = {index: number for number, index in enumerate(order)}
    numbered = tuple(replace(gpu, cuda_index=numbers.get(gpu.index)) for gpu in gpus)
    return numbered, tuple(missing)


def _read_visible(gpus: Sequence[Gpu], variable: str) -> tuple[list[int], list[str]]:
    entries = [entry.strip() for entry in variable.split(",")]
    order: list[int] = []
    for position, entry in enumerate(entries):
        if entry == "" or re.fullmatch(r"-\d+", entry):
            break
        named = [gpu.index for gpu in _named(entry, gpus)]
        if len(named) != 1:
            return order, entries[position:]
        if named[0] in order:
            # Two MIG slices of one GPU are two entries, but here one GPU.
            if entry.startswith("MIG-"):
                continue
            return [], entries[position:]
        order.append(named[0])
    return order, []


def _named(entry: str, gpus: Sequence[Gpu]) -> list[Gpu]:
    if entry.startswith("MIG-"):
        # Old drivers write MIG-GPU-<uuid>/<gi>/<ci>.
        return [g for g in gpus if entry in g.mig_uuids or (g.uuid is not None and g.uuid in entry)]
    if entry.startswith("GPU-"):
        return [g for g in gpus if g.uuid is not None and g.uuid.startswith(entry)]
    digits = re.match(r"\d+", entry)  # as strtol reads it: what follows the digits is ignored
    number = int(digits.group()) if digits else len(gpus)
    return list(gpus[number : number + 1])


def number_by_torch(gpus: Sequence[Gpu], torch: TorchFacts) -> tuple[Gpu, ...]:
    """Correct the CUDA numbers by torch's own list, and fill in what only torch knows.

    CUDA puts the fastest GPU first unless CUDA_DEVICE_ORDER=PCI_BUS_ID, so on mixed machines its
    numbers are not the driver's. Without NVML (ROCm, a container) torch's list is all there is.
    """
    if not gpus:
        return tuple(
            Gpu(
                index=device.index,
                name=device.name,
                uuid=device.uuid,
                cuda_index=device.index,
                memory_total_bytes=device.memory_total_bytes,
                compute_capability=device.compute_capability,
            )
            for device in torch.devices
        )
    by_uuid = {device.uuid: device for device in torch.devices if device.uuid}
    known = {gpu.uuid for gpu in gpus}
    if not torch.devices or not set(by_uuid) <= known or len(by_uuid) != len(torch.devices):
        return tuple(gpus)  # MIG slices and virtual GPUs have UUIDs of their own
    corrected = []
    for gpu in gpus:
        device = by_uuid.get(gpu.uuid or "")
        if device is None:
            corrected.append(replace(gpu, cuda_index=None))
            continue
        corrected.append(
            replace(
                gpu,
                cuda_index=device.index,
                memory_total_bytes=gpu.memory_total_bytes or device.memory_total_bytes,
                compute_capability=gpu.compute_capability or device.compute_capability,
            )
        )
    return tuple(corrected)
