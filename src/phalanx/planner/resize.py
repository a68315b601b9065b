"""A job and its machine cut, or grown, to another number of ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations

from phalanx.job.schema import Job
from phalanx.machine import Gpu, Link, Machine
from phalanx.planner.choices.devices import place_ranks


@dataclass(frozen=True)
class Scaled:
    """A job and a machine cut, or grown, to some number of ranks."""

    job: Job
    machine: Machine


def on_ranks(job: Job, machine: Machine, ranks: int) -> Scaled:
    """The job on so many devices like those it has: the first ones of a node, whole nodes, or more
    cards of the same kind on one node than there are."""
    placement = place_ranks(job, machine)
    strategy = "auto" if job.strategy == "single" and ranks > 1 else job.strategy
    if placement.device.value != "cuda":
        devices = job.devices.model_copy(update={"cpu": ranks, "gpus": None})
        return Scaled(job.model_copy(update={"devices": devices, "strategy": strategy}), machine)
    cards = placement.cards
    devices = job.devices.model_copy(update={"gpus": None, "cpu": None})
    job = job.model_copy(update={"devices": devices, "strategy": strategy})
    if ranks <= len(cards):
        return Scaled(job, _of(machine, cards[:ranks], nodes=1))
    if placement.nodes > 1 and ranks % len(cards) == 0:
        return Scaled(job, _of(machine, cards, nodes=ranks // len(cards)))
    return Scaled(job, _grown(machine, cards, ranks))


def _of(machine: Machine, cards: tuple[Gpu, ...], *, nodes: int) -> Machine:
    return replace(machine, gpus=cards, nodes=nodes, cuda_visible_devices=None)


def _grown(machine: Machine, cards: tuple[Gpu, ...], count: int) -> Machine:
    """As many cards like the first one, joined as the ones that are there, with cores in
    proportion."""
    known = {card.index for card in cards}
    links = [link for link in machine.links if link.first in known and link.second in known]
    pattern = min(links, key=lambda link: link.nvlink_lanes) if links else None
    gpus = tuple(replace(cards[0], index=i, cuda_index=i, uuid=None) for i in range(count))
    grown = replace(machine, gpus=gpus, nodes=1, cuda_visible_devices=None)
    cores = machine.cpu.usable_cores * count // len(cards)
    return replace(
        grown,
        cpu=replace(machine.cpu, usable_cores=cores),
        links=tuple(
            replace(pattern, first=i, second=j)
            if pattern is not None
            else Link(first=i, second=j, path="?")
            for i, j in combinations(range(count), 2)
        ),
    )
