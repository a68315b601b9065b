"""A recorded run: what every slot was given and lost, what every tensor was after every step.

recordings/rank-N.jsonl      a `start` line, then one `step` line per optimizer step
recordings/batches/S-K.npz   what the data set gave for slot K of step S, while there is space

Tensors are not kept, only a `Fingerprint` of each: a few numbers that are the same for equal
tensors and, for any difference, differ with overwhelming probability. Ranks write the lines
(`engine/training/recording.py`); `diagnose.compare` reads them.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path

from phalanx.codec import from_json, to_json

NUM_PROJECTIONS = 3


@dataclass(frozen=True)
class Fingerprint:
    """A tensor in a few numbers. They are sums over its elements, so the fingerprints of shards
    add up to that of the whole."""

    squares: float
    """Sum of the squared elements."""
    projections: tuple[float, ...]
    """Products with fixed random vectors of elements between -1 and 1."""

    @property
    def norm(self) -> float:
        return math.sqrt(self.squares)

    def __add__(self, other: Fingerprint) -> Fingerprint:
        pairs = zip(self.projections, other.projections, strict=True)
        return Fingerprint(self.squares + other.squares, tuple(a + b for a, b in pairs))

    def distance(self, other: Fingerprint) -> float:
        """About the norm of the difference of the two tensors; zero only when they are equal."""
        pairs = list(zip(self.projections, other.projections, strict=True))
        # An element of a random vector has variance 1/3.
        random = math.sqrt(3 * sum((a - b) ** 2 for a, b in pairs) / len(pairs))
        return max(abs(self.norm - other.norm), random)

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.squares) and all(map(math.isfinite, self.projections))


ZERO = Fingerprint(0.0, (0.0,) * NUM_PROJECTIONS)

Tensors = dict[str, Fingerprint | None]
"""Fingerprints by name; None for a gradient that is not there."""


@dataclass(frozen=True, kw_only=True)
class SlotRecord:
    """One micro-batch."""

    slot: int
    ids: list[int]
    """Samples asked for."""
    batch: str
    """Hash of what the data set gave for them."""
    samples: dict[str, list[str]] = field(default_factory=dict)
    """For each part of the batch that has a row per sample, a short hash of every row."""
    terms: dict[str, tuple[float, float]]
    """Sum and weight of each term of the loss."""
    weights: dict[str, float] | None = None
    """What Recipe.weight said; None when it depends on the predictions."""
    collectives: list[str] = field(default_factory=list)
    """Where loss or model talked to other ranks themselves: `recipe.py:57 allreduce`."""
    is_random: bool = False
    """True if loss or model drew from torch's generator, which is seeded per micro-batch."""
    dropout: list[str] = field(default_factory=list)
    """Functions whose dropout was disabled: `F.dropout`."""


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """One optimizer step of one rank."""

    step: int
    """Counted from 0."""
    lr: float
    weights: dict[str, float] | None = None
    """What each term was divided by, over the whole global batch."""
    slots: list[SlotRecord]
    gradients: Tensors
    """After the reduction, before clipping."""
    parameters: Tensors
    """After the step."""
    buffers: Tensors


@dataclass(frozen=True, kw_only=True)
class StartRecord:
    """What one rank begins with."""

    rank: int
    world: int
    strategy: str
    parameters: Tensors
    buffers: Tensors
    outside: list[str] = field(default_factory=list)
    """Parameters that the optimizer has and the model has not."""
    frozen: list[str] = field(default_factory=list)
    """Parameters of the model that ask for no gradient."""
    statistics: list[str] = field(default_factory=list)
    """Buffers that are BatchNorm's running statistics."""
    parts: dict[str, str] = field(default_factory=dict)
    """Which part of a tensor this rank holds, by name; all of it where there is no entry."""
    dropout: list[str] = field(default_factory=list)
    """Rates of dropout that were set to 0, as `module.attribute`."""


@dataclass(frozen=True)
class RankRecording:
    """What one rank wrote."""

    start: StartRecord
    steps: list[StepRecord]


@dataclass(frozen=True)
class Recording:
    """What all ranks of a run wrote, in rank order."""

    ranks: list[RankRecording]
    folder: Path | None = field(default=None, compare=False)
    """Where the batches are."""

    @property
    def world(self) -> int:
        return len(self.ranks)

    @property
    def num_steps(self) -> int:
        return min(len(rank.steps) for rank in self.ranks)

    def slots(self, step: int) -> dict[int, tuple[int, SlotRecord]]:
        """Every slot of a step with the rank that ran it."""
        return {
            slot.slot: (rank.start.rank, slot)
            for rank in self.ranks
            for slot in rank.steps[step].slots
        }

    def held(self, kind: str, step: int) -> list[Tensors]:
        """`gradients`, `parameters` or `buffers` of each rank after a step; -1: at the start."""
        return [getattr(rank.start if step < 0 else rank.steps[step], kind) for rank in self.ranks]

    def replicas(self, kind: str, step: int, name: str) -> list[list[tuple[int, Fingerprint]]]:
        """(rank, fingerprint) of every rank that holds a tensor, one list for each distinct part
        of it: those of a list must be equal, the parts add up. No gradient counts as zero."""
        parts: dict[str, list[tuple[int, Fingerprint]]] = {}
        for rank, tensors in zip(self.ranks, self.held(kind, step), strict=True):
            if name in tensors:
                part = rank.start.parts.get(name, "")
                parts.setdefault(part, []).append((rank.start.rank, tensors[name] or ZERO))
        return list(parts.values())

    def whole(self, kind: str, step: int, name: str) -> Fingerprint | None:
        """The fingerprint of a whole tensor: parts added up, of replicas the first rank's."""
        total = None
        for (_, first), *_ in self.replicas(kind, step, name):
            total = first if total is None else total + first
        return total

    @property
    def disabled_dropout(self) -> list[str]:
        """All dropout that was disabled, by module or function."""
        first = self.ranks[0]
        called = {name for step in first.steps for slot in step.slots for name in slot.dropout}
        return [*first.start.dropout, *sorted(called)]

    def names(self, kind: str, step: int) -> list[str]:
        """Names of the tensors some rank has, in the order of the first rank."""
        return list(dict.fromkeys(n for tensors in self.held(kind, step) for n in tensors))


def recording_file(folder: Path, rank: int) -> Path:
    """Where a rank writes."""
    return folder / f"rank-{rank}.jsonl"


def batch_file(folder: Path, step: int, slot: int) -> Path:
    """Where the content of a slot is."""
    return folder / "batches" / f"{step}-{slot}.npz"


def write_line(path: Path, record: StartRecord | StepRecord) -> None:
    """Append a record; a `start` begins the file anew, so that of several attempts the last one
    remains."""
    is_start = isinstance(record, StartRecord)
    line = json.dumps({"kind": "start" if is_start else "step", **to_json(record)})
    with path.open("w" if is_start else "a", encoding="utf-8") as file:
        file.write(line + "\n")


def read_recording(folder: Path, world: int) -> Recording:
    """The recording of a run that ended in order."""
    ranks = []
    for rank in range(world):
        with recording_file(folder, rank).open(encoding="utf-8") as file:
            records = [json.loads(line) for line in file]
        kinds = [record["kind"] for record in records]
        assert kinds[0] == "start" and set(kinds[1:]) <= {"step"}
        steps = [from_json(StepRecord, record) for record in records[1:]]
        ranks.append(RankRecording(from_json(StartRecord, records[0]), steps))
    return Recording(ranks, folder)
