"""Several nodes that have met, as the one `Machine` that is planned for: of every fact the least
that any of them has, because a step waits for the slowest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from phalanx.errors import Finding, format_bytes
from phalanx.machine.facts import Gpu, Machine


def combine_machines(
    machines: Sequence[Machine],
    names: Sequence[str],
    links_gbps: Sequence[float | None],
    *,
    on_cpu: bool,
) -> tuple[Machine, list[Finding]]:
    """The machine to plan for, in the order of the nodes, and where the nodes differ. `on_cpu`: the
    job asks for CPU processes, so GPUs do not matter."""
    first = machines[0]
    findings = [] if on_cpu else [*_different_kinds(machines, names)]
    if findings:
        return first, findings
    count = min(len(machine.visible_gpus) for machine in machines)
    if not on_cpu:
        findings += _different_counts(machines, names, count)
        findings += _different_cards(machines, names)
    gpus = tuple(
        _least([machine.visible_gpus[index] for machine in machines]) for index in range(count)
    )
    known = [speed for speed in links_gbps if speed is not None]
    combined = replace(
        first,
        gpus=gpus,
        cpu=replace(first.cpu, usable_cores=min(machine.cpu.usable_cores for machine in machines)),
        memory=replace(
            first.memory,
            total_bytes=min(machine.memory.total_bytes for machine in machines),
            available_bytes=min(machine.memory.available_bytes for machine in machines),
        ),
        nodes=len(machines),
        node_link_gbps=min(known) if len(known) == len(machines) else None,
        hosts=tuple(names),
    )
    return combined, findings


def _least(cards: Sequence[Gpu]) -> Gpu:
    """The card of one place that has to do for all nodes."""
    smallest = min(cards, key=lambda card: card.memory_total_bytes or 0)
    capabilities = [card.compute_capability for card in cards]
    known = [capability for capability in capabilities if capability is not None]
    free = [card.memory_free_bytes for card in cards]
    rooms = [room for room in free if room is not None]
    return replace(
        smallest,
        index=cards[0].index,
        cuda_index=cards[0].cuda_index,
        compute_capability=min(known) if len(known) == len(cards) else None,
        memory_free_bytes=min(rooms) if len(rooms) == len(cards) else None,
    )


def _different_kinds(machines: Sequence[Machine], names: Sequence[str]) -> list[Finding]:
    kinds = [machine.accelerator for machine in machines]
    listed = "; ".join(f"{name}: {kind}" for name, kind in zip(names, kinds, strict=True))
    if "mps" in kinds:
        what = "Apple's MPS is one device of one machine"
    elif len(set(kinds)) > 1:
        what = "the nodes have different kinds of devices"
    else:
        return []
    return [
        Finding(
            slug="nodes-devices",
            what=f"{what}: {listed}",
            why="every rank of a run computes on the same kind; each node was asked what it has",
            fix="--cpu N on every node, or nodes with the same devices (`phalanx check` on each)",
        )
    ]


def _different_counts(
    machines: Sequence[Machine], names: Sequence[str], count: int
) -> list[Finding]:
    counts = [len(machine.visible_gpus) for machine in machines]
    if len(set(counts)) == 1:
        return []
    listed = "; ".join(f"{name}: {number}" for name, number in zip(names, counts, strict=True))
    idle = sum(counts) - count * len(counts)
    return [
        Finding(
            slug="nodes-gpus",
            what=f"the nodes have different numbers of GPUs, {count} of each are used and {idle} "
            "idle",
            why=f"every node runs as many ranks; visible GPUs: {listed}",
            fix=f"--gpus {count} says the same on purpose",
            severity="warning",
        )
    ]


def _different_cards(machines: Sequence[Machine], names: Sequence[str]) -> list[Finding]:
    kinds = [sorted({gpu.name for gpu in machine.visible_gpus}) for machine in machines]
    if all(kind == kinds[0] for kind in kinds):
        return []
    sizes = [
        (gpu.memory_total_bytes or 0, f"{name}: {gpu.name}")
        for machine, name in zip(machines, names, strict=True)
        for gpu in machine.visible_gpus[:1]
    ]
    least = min(sizes)
    listed = "; ".join(f"{name}, {format_bytes(size)}" for size, name in sizes)
    return [
        Finding(
            slug="nodes-cards",
            what="the nodes have different GPUs; the plan is for the smallest memory, "
            f"{format_bytes(least[0])}",
            why=f"every rank gets the same micro-batch, and a step waits for the slowest: {listed}",
            fix="nodes with the same cards, where there are any (Slurm: --constraint)",
            severity="warning",
        )
    ]
