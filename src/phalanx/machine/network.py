"""The network of this node: its addresses, the interface that leads to the others, and what NCCL
and gloo should be told about it. Nothing here sends a byte."""

from __future__ import annotations

import ipaddress
import os
import platform
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_RDMA = Path("/sys/class/infiniband")
_SOCKETS = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


@dataclass(frozen=True)
class Interface:
    """The way from this node to the others."""

    name: str
    address: str
    reason: str
    gbps: float | None = None
    """What the driver says; None when it does not."""


@dataclass(frozen=True)
class Setting:
    """A variable for the ranks of this node, and why."""

    name: str
    value: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}={self.value}: {self.reason}"


def own_addresses() -> dict[str, str]:
    """Every address of this node with its interface; loopback's are among them."""
    import psutil

    found: dict[str, str] = {}
    for name, addresses in psutil.net_if_addrs().items():
        for entry in addresses:
            if entry.family in (socket.AF_INET, socket.AF_INET6):
                found[entry.address.partition("%")[0]] = name
    return found


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def resolve(host: str, port: int) -> list[str]:
    """The addresses of a host, IPv4 first; OSError when it has none."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def family_of(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def choose_interface(peer: str, environment: Mapping[str, str]) -> Interface:
    """The interface that the user has named, else the one that leads to `peer`, an address that may
    be this node's own. OSError when none does."""
    own = own_addresses()
    for variable in _SOCKETS:
        name = environment.get(variable, "").split(",")[0].lstrip("=")
        address = next(
            (a for a, n in own.items() if n == name and family_of(a) == family_of(peer)), None
        )
        if address is not None:
            return Interface(name, address, f"{variable}={environment[variable]}", _speed(name))
    address = peer if peer in own else _source_of(peer)
    why = "it has the address of the meeting" if peer in own else f"it leads to {peer}"
    return Interface(own.get(address, ""), address, why, _speed(own.get(address, "")))


def _source_of(peer: str) -> str:
    """The address that packets to `peer` leave from: asked of the kernel, none is sent."""
    with socket.socket(family_of(peer), socket.SOCK_DGRAM) as asking:
        asking.connect((peer, 9))
        return str(asking.getsockname()[0])


def _speed(name: str) -> float | None:
    import psutil

    about = psutil.net_if_stats().get(name)
    return about.speed / 1000 if about is not None and about.speed > 0 else None


def rdma_devices(folder: Path = _RDMA) -> list[str]:
    """InfiniBand and RoCE devices, by name."""
    return sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []


def network_settings(
    interface: Interface, *, has_cuda: bool, rdma: list[str] | None = None
) -> list[Setting]:
    """What ranks on this node are told, each with its reason; a user's own setting wins."""
    settings = [Setting("GLOO_SOCKET_IFNAME", interface.name, interface.reason)]
    if has_cuda:
        names = set(own_addresses().values()) - {interface.name}
        exact, why = interface.name, ""
        if any(other.startswith(interface.name) for other in names):
            exact, why = f"={interface.name}", "; `=`: no other that begins so"
        settings.append(Setting("NCCL_SOCKET_IFNAME", exact, f"{interface.reason}{why}"))
        if not (rdma_devices() if rdma is None else rdma):
            settings.append(
                Setting("NCCL_IB_DISABLE", "1", f"no InfiniBand or RoCE device in {_RDMA}")
            )
    return [
        Setting(s.name, os.environ[s.name], "set by you") if s.name in os.environ else s
        for s in settings
    ]


def host_name() -> str:
    return platform.node() or "unnamed"
