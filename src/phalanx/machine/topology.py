"""How the GPUs of one machine are joined: NVLink lanes, PCIe paths, direct access (P2P)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any, Literal

from phalanx.machine.facts import Gpu, Link

_PATHS: dict[int, Literal["SOC", "PIX", "PXB", "PHB", "NODE", "SYS"]] = {
    0: "SOC",  # NVML_TOPOLOGY_INTERNAL: two GPUs of one board
    10: "PIX",
    20: "PXB",
    30: "PHB",
    40: "NODE",
    50: "SYS",
}
# pynvml 13 has NVML_P2P_CAPS_INDEX_READ as the tuple (0,), which NVML does not take.
_P2P_READ = 0
_P2P_NVLINK = 2
_P2P_OK = 0
_REMOTE_SWITCH = 2  # NVML_NVLINK_DEVICE_TYPE_SWITCH
_MAX_LANES = 36


def ask_nvml(nvml: Any, name: str, *args: Any) -> Any:
    """One NVML call by name; None for whatever goes wrong.

    Every driver, GPU and version of pynvml lacks some call, and no single fact is worth a crash.
    """
    try:
        return getattr(nvml, name)(*args)
    except Exception:
        return None


def probe_links(nvml: Any, handles: Sequence[Any]) -> tuple[Link, ...]:
    """The link of every pair of GPUs; a GPU that cannot be reached has none."""
    reached = [(i, handle) for i, handle in enumerate(handles) if not isinstance(handle, Exception)]
    if len(reached) < 2:
        return ()
    lanes = {i: _lanes(nvml, handle) for i, handle in reached}
    buses = {i: _bus(ask_nvml(nvml, "nvmlDeviceGetPciInfo", handle)) for i, handle in reached}
    links = []
    for (i, first), (j, second) in combinations(reached, 2):
        level = ask_nvml(nvml, "nvmlDeviceGetTopologyCommonAncestor", first, second)
        read = ask_nvml(nvml, "nvmlDeviceGetP2PStatus", first, second, _P2P_READ)
        over_nvlink = ask_nvml(nvml, "nvmlDeviceGetP2PStatus", first, second, _P2P_NVLINK)
        links.append(
            Link(
                first=i,
                second=j,
                path=_PATHS.get(level, "?") if level is not None else "?",
                nvlink_lanes=_shared_lanes(lanes[i], lanes[j], buses[j], over_nvlink),
                p2p=None if read is None else read == _P2P_OK,
            )
        )
    return tuple(links)


def _shared_lanes(
    first: list[str | None], second: list[str | None], second_bus: str | None, p2p: int | None
) -> int:
    """The NVLink lanes between two GPUs, given the far ends of each one's lanes."""
    direct = first.count(second_bus) if second_bus else 0
    on_switch = "switch" in first and "switch" in second
    # Through NVSwitch all lanes of a GPU serve every other GPU. Virtual machines hide the far
    # ends; there the driver's word that P2P goes over NVLink has to do.
    if direct == 0 and (p2p == _P2P_OK or (p2p is None and on_switch)):
        return min(len(first), len(second))
    return direct


def _lanes(nvml: Any, handle: Any) -> list[str | None]:
    """The far end of each active NVLink lane: a PCI bus id, `switch`, or None when hidden."""
    ends: list[str | None] = []
    for lane in range(_MAX_LANES):
        active = ask_nvml(nvml, "nvmlDeviceGetNvLinkState", handle, lane)
        if active is None:
            break  # past the last lane, or no NVLink at all
        if not active:
            continue
        if ask_nvml(nvml, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, lane) == _REMOTE_SWITCH:
            ends.append("switch")
        else:
            ends.append(_bus(ask_nvml(nvml, "nvmlDeviceGetNvLinkRemotePciInfo", handle, lane)))
    return ends


def _bus(pci: Any) -> str | None:
    bus_id = getattr(pci, "busId", None)
    if isinstance(bus_id, bytes):
        bus_id = bus_id.decode(errors="replace")
    return bus_id.lower() if isinstance(bus_id, str) and bus_id else None


def link_matrix(gpus: Sequence[Gpu], links: Sequence[Link]) -> list[list[str]]:
    """One row and one column per GPU, as `nvidia-smi topo -m` prints it; `X` is the GPU itself."""
    labels = {(link.first, link.second): link.label for link in links}
    return [
        [
            "X"
            if row.index == column.index
            else labels.get((min(row.index, column.index), max(row.index, column.index)), "?")
            for column in gpus
        ]
        for row in gpus
    ]


def link_groups(gpus: Sequence[Gpu], links: Sequence[Link]) -> list[tuple[str, list[list[int]]]]:
    """For each kind of link, nearest first, the sets of GPUs joined by it or by a nearer one."""
    joined = {gpu.index: {gpu.index} for gpu in gpus}
    levels = []
    for label in sorted({link.label for link in links}, key=_distance):
        for link in links:
            first, second = joined[link.first], joined[link.second]
            if link.label == label and first is not second:
                first |= second
                joined.update(dict.fromkeys(second, first))
        groups = {min(group): sorted(group) for group in joined.values() if len(group) > 1}
        levels.append((label, [groups[start] for start in sorted(groups)]))
    return levels


def _distance(label: str) -> int:
    if label.startswith("NV"):
        return -int(label[2:])
    return next((level for level, path in _PATHS.items() if path == label), 99)
