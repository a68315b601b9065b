"""How long ranks take to exchange gradients and weights: latency plus size over bandwidth.

A ring moves 2 (n - 1) / n of the bytes through the slowest link for an all-reduce, half of it for
an all-gather or a reduce-scatter.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from phalanx.machine import Gpu, Machine
from phalanx.machine.calibration import Calibration
from phalanx.machine.catalogue import match_gpu
from phalanx.machine.catalogue_rows import PCIE_GB_PER_S

# torch/_inductor/comm_analysis.py and NCCL's tuning.cc: rings over NVLink reach 120 of 150 (V100),
# 240 of 300 (A100), 370 of 450 GB/s (H100).
_NVLINK_SHARE = 0.8
# NCCL counts 24 of 31 GB/s for PCIe 4 x16 (graph/topo.h), and 10 GB/s between two sockets.
_PCIE_SHARE = 24 / 31
_SOCKETS_GB_PER_S = 10.0
_SOCKET_GPUS = 4  # PCIe cards on one socket of a two-socket server
# Without direct access (GeForce cards since Turing: NVIDIA/nccl-tests issue 117) every byte is
# written to host memory and read from it, and all GPUs share the way there: ResNet-50 and VGG-16 on
# 2, 4 and 8 RTX 3090 exchanged at about 12, 5 and 2.6 GB/s each (server-gear.com, tf_cnn_benchmarks
# on two EPYC 7352: what steps took longer than on one GPU).
_THROUGH_HOST = 0.5
_HOST_SHARED_GB_PER_S = 21.0
# IB and RoCE (comm_analysis.py: 0.77 for two nodes, more for many).
_NETWORK_SHARE = 0.77
# NCCL's tuning.cc, simple protocol: 8.4 us to begin, and per hop 3.4 over NVLink, 5.7 over PCIe,
# 14 over the network.
_BEGIN_S = 8.4e-6
_HOP_S = {"nvlink": 3.4e-6, "pcie": 5.7e-6, "network": 14e-6, "host": 14e-6}
_GLOO_GB_PER_S = 1.5  # between processes of one host, through loopback
_GLOO_HOP_S = 60e-6


@dataclass(frozen=True)
class Ring:
    """Ranks in a ring."""

    ranks: int
    gb_per_s: float
    """Through the slowest link, one direction."""
    latency_s: float
    """Of one collective."""
    text: str
    spread: float = 0.35

    def all_reduce(self, size: float, calls: int = 1) -> float:
        return self._time(2, size, calls)

    def all_gather(self, size: float, calls: int = 1) -> float:
        """Also a reduce-scatter: the same way back."""
        return self._time(1, size, calls)

    def _time(self, rounds: int, size: float, calls: int) -> float:
        if self.ranks == 1:
            return 0.0
        moved = rounds * (self.ranks - 1) / self.ranks * size / (self.gb_per_s * 1e9)
        return calls * self.latency_s * rounds / 2 + moved


def make_ring(
    machine: Machine,
    cards: tuple[Gpu, ...],
    *,
    ranks: int,
    nodes: int,
    backend: str,
    calibration: Calibration | None = None,
) -> Ring:
    """The ring over all ranks of a plan."""
    if ranks == 1:
        return Ring(1, 1.0, 0.0, "one rank")
    measured = _measured(calibration, ranks, backend) if nodes == 1 else None
    if measured is not None:
        return measured
    if backend != "nccl" or not cards:
        hops = 2 * (ranks - 1)
        return Ring(
            ranks, _GLOO_GB_PER_S, hops * _GLOO_HOP_S, "gloo through host memory", spread=0.7
        )
    per_node = ranks // nodes
    rate, kind, text = _inside(machine, cards, per_node)
    delay = 2 * (per_node - 1) * _HOP_S[kind] if per_node > 1 else 0.0
    if nodes > 1:
        link = machine.node_link_gbps
        network = _NETWORK_SHARE * (link or 100.0) / 8
        if per_node == 1 or network < rate:
            rate = network
            text = f"{link or 100:g} Gb/s between nodes" + ("" if link else " (assumed)")
        delay += 2 * (nodes - 1) * _HOP_S["network"]
    return Ring(ranks, rate, _BEGIN_S + delay, f"{text}, {rate:.3g} GB/s reached")


def _inside(machine: Machine, cards: tuple[Gpu, ...], ranks: int) -> tuple[float, str, str]:
    """(GB/s, kind of link, text) of a ring within one node."""
    if ranks == 1:
        return float("inf"), "pcie", "one GPU per node"
    used = {card.index for card in cards}
    links = [link for link in machine.links if link.first in used and link.second in used]
    if links and all(link.nvlink_lanes for link in links):
        lanes = [link.gb_per_s or 25.0 * link.nvlink_lanes for link in links]
        return _NVLINK_SHARE * min(lanes), "nvlink", "NVLink"
    stated = [link.gb_per_s for link in links if link.gb_per_s and not link.nvlink_lanes]
    rate, text = pcie(cards)
    if stated:
        rate = _PCIE_SHARE * min(stated)
    is_split = any(link.path == "SYS" for link in links) or (
        bool(machine.assumed) and ranks > _SOCKET_GPUS
    )
    if is_split and rate > _SOCKETS_GB_PER_S:
        rate, text = _SOCKETS_GB_PER_S, f"{text} across sockets"
    if not all(_has_direct_access(link.p2p, cards) for link in links):
        rate = min(_THROUGH_HOST * rate, _HOST_SHARED_GB_PER_S / ranks)
        return rate, "host", f"{text} through host memory"
    return rate, "pcie", text


def pcie(cards: tuple[Gpu, ...]) -> tuple[float, str]:
    """(GB/s reached, text) between these cards and their host, one way."""
    rows = [row for card in cards for row in match_gpu(card.name)[:1]]
    generation = min((row.pcie_generation or 3 for row in rows), default=4)
    return _PCIE_SHARE * PCIE_GB_PER_S[generation], f"PCIe {generation}"


def _has_direct_access(p2p: bool | None, cards: tuple[Gpu, ...]) -> bool:
    return p2p if p2p is not None else not any("GeForce" in card.name for card in cards)


def _measured(calibration: Calibration | None, ranks: int, backend: str) -> Ring | None:
    for link in calibration.links if calibration is not None else ():
        if link.ranks == ranks and link.backend == backend:
            return Ring(
                ranks,
                link.gb_per_s,
                link.latency_us * 1e-6,
                f"measured: {link.gb_per_s:.3g} GB/s",
                spread=0.15,
            )
    return None


@dataclass(frozen=True)
class Exchange:
    """Seconds of one optimizer step."""

    total_s: float
    exposed_s: float
    """What computing does not hide."""
    slowed_s: float
    """What computing loses while both run."""


# Kernels of a collective take processors and bandwidth from computing (arXiv 2412.12487, Echo,
# measures the slowdown; a tenth of the time both run).
_SLOWDOWN = 0.1


_FIRST_BUCKET = 2**20  # torch's DDP sends a small one first, to begin early


def exchange_ddp(ring: Ring, gradient_bytes: int, bucket_bytes: int, backward_s: float) -> Exchange:
    """Buckets are summed while backward goes on; the last one has nothing left to hide behind."""
    if ring.ranks == 1 or gradient_bytes == 0:
        return Exchange(0.0, 0.0, 0.0)
    buckets = 1 + ceil(max(0, gradient_bytes - _FIRST_BUCKET) / bucket_bytes)
    total = ring.all_reduce(gradient_bytes, buckets)
    last = total * min(1.0, bucket_bytes / gradient_bytes)
    if buckets == 2:
        last = total * (1 - _FIRST_BUCKET / gradient_bytes)
    hidden = max(0.0, min(total - last, backward_s * (1 - 1 / buckets)))
    return Exchange(total, total - hidden, _SLOWDOWN * hidden)


def exchange_sharded(
    ring: Ring,
    *,
    weight_bytes: int,
    gradient_bytes: int,
    blocks: int,
    passes: int,
    forward_s: float,
    backward_s: float,
    is_kept: bool,
    copies: Ring | None = None,
) -> Exchange:
    """Weights gathered before they are used, twice per micro-batch (once where `is_kept`: ZeRO-1
    and 2 gather once per step), gradients scattered in backward; one block ahead of computing."""
    if ring.ranks == 1 and copies is None:
        return Exchange(0.0, 0.0, 0.0)
    calls = max(1, blocks)
    gather = ring.all_gather(weight_bytes, calls)
    scatter = ring.all_gather(gradient_bytes, calls)
    across = copies.all_reduce(gradient_bytes / ring.ranks, calls) if copies is not None else 0.0
    if is_kept:
        total = passes * scatter + gather + across
        hidden = min(passes * scatter, backward_s * (1 - 1 / (calls + 1)))
        return Exchange(total, total - hidden, _SLOWDOWN * hidden)
    before, after = passes * gather, passes * (gather + scatter) + across
    share = 1 - 1 / (calls + 1)
    hidden = min(before, forward_s) * share + min(after, backward_s) * share
    return Exchange(before + after, before + after - hidden, _SLOWDOWN * hidden)
