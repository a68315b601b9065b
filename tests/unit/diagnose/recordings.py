"""Recordings made by hand: a run that trains the same on any number of ranks, to be spoiled."""

import random
from dataclasses import replace

from phalanx.diagnose.recording import (
    NUM_PROJECTIONS,
    Fingerprint,
    RankRecording,
    Recording,
    SlotRecord,
    StartRecord,
    StepRecord,
)

SLOTS = 4
STEPS = 3


def tensor(seed, scale=1.0):
    """The fingerprint of some tensor of norm `scale`."""
    draw = random.Random(seed)
    products = tuple(scale * draw.uniform(-0.5, 0.5) for _ in range(NUM_PROJECTIONS))
    return Fingerprint(scale**2, products)


def moved(fingerprint, by):
    """The fingerprint of a tensor at a distance of `by`, of the same norm."""
    products = tuple(p + by * 3**-0.5 for p in fingerprint.projections)
    return Fingerprint(fingerprint.squares, products)


def make_slot(step, slot):
    first = 10 * (SLOTS * step + slot)
    ids = list(range(first, first + 3))
    return SlotRecord(
        slot=slot,
        ids=ids,
        batch=f"batch {step} {slot}",
        samples={"x": [f"x{i}" for i in ids], "label": [f"y{i % 2}" for i in ids]},
        terms={"fit": (3.0 + slot, 3.0), "size": (0.5, 3.0)},
        weights={"*": 3.0},
    )


def make_run(world):
    """A run of `world` ranks with two parameters and two buffers."""
    ranks = []
    for rank in range(world):
        mine = [slot for slot in range(SLOTS) if slot * world // SLOTS == rank]
        start = StartRecord(
            rank=rank,
            world=world,
            strategy="ddp" if world > 1 else "single",
            parameters={"weight": tensor(1, 10.0), "bias": tensor(2, 0.0)},
            buffers={"norm.running_mean": tensor(3), "count": tensor(4)},
            statistics=["norm.running_mean"],
        )
        steps = [
            StepRecord(
                step=step,
                lr=0.1,
                weights={"*": 12.0},
                slots=[make_slot(step, slot) for slot in mine],
                gradients={"weight": tensor(f"g{step}", 2.0), "bias": tensor(f"b{step}", 0.1)},
                parameters={"weight": tensor(f"w{step}", 10.0), "bias": tensor(f"c{step}", 0.01)},
                buffers={"norm.running_mean": tensor(f"r{step}"), "count": tensor(4)},
            )
            for step in range(STEPS)
        ]
        ranks.append(RankRecording(start, steps))
    return Recording(ranks)


def change_step(run, rank, step, **changes):
    """The run with other fields in one step of one rank."""
    record = run.ranks[rank]
    steps = list(record.steps)
    steps[step] = replace(steps[step], **changes)
    ranks = list(run.ranks)
    ranks[rank] = replace(record, steps=steps)
    return Recording(ranks)


def change_start(run, rank, **changes):
    ranks = list(run.ranks)
    ranks[rank] = replace(run.ranks[rank], start=replace(run.ranks[rank].start, **changes))
    return Recording(ranks)


def change_slots(run, function, *, step=0, ranks=None):
    """The run with `function(slot)` in place of every slot of a step, on some ranks or all."""
    for rank in range(run.world):
        if ranks is None or rank in ranks:
            slots = [function(slot) for slot in run.ranks[rank].steps[step].slots]
            run = change_step(run, rank, step, slots=slots)
    return run


def change_tensor(run, field, name, function, *, step=0, ranks=None):
    """The run with another tensor after a step, on some ranks or all; -1: at the start."""
    for rank in range(run.world):
        if ranks is None or rank in ranks:
            record = run.ranks[rank].start if step < 0 else run.ranks[rank].steps[step]
            tensors = getattr(record, field)
            changes = {field: {**tensors, name: function(tensors[name])}}
            if step < 0:
                run = change_start(run, rank, **changes)
            else:
                run = change_step(run, rank, step, **changes)
    return run
