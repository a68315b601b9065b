"""Is training on many ranks training on one? Compares two recorded runs and stops at the first
thing that differs.

before the first step:   weights, buffers
each step:               samples asked for -> batch content -> loss terms -> gradients -> weights
                         -> buffers; tensors also rank against rank

That order is the order of cause and effect: what comes first cannot be blamed on what follows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from phalanx.codec import finite, to_json
from phalanx.diagnose.recording import ZERO, Fingerprint, Recording

TOLERANCE = 1e-10
"""In float64, rounding alone stays five orders of magnitude below."""

_SMALLEST_BUFFER = 1e-4  # a statistic that is zero but for rounding has no scale of its own

_Weights = dict[str, float] | None
Kind = Literal["samples", "batch", "loss", "gradient", "weight", "buffer"]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One comparison that was made."""

    kind: Kind
    step: int
    """Counted from 0; -1 before the first."""
    place: str
    """`slot 3`, or the name of a tensor."""
    one: Any
    """The value on one rank, or on `ranks[0]`; of a tensor its norm."""
    many: Any
    """The value on many ranks, or on `ranks[1]`."""
    apart: float
    """How far apart, relative to the scale of its kind."""
    rank: int | None = None
    """The rank of the many that had it, where that was one."""
    ranks: tuple[int, int] | None = None
    """Set when two ranks of the same run are compared, not the two runs."""

    @property
    def when(self) -> str:
        """The step in words."""
        return f"step {self.step + 1}" if self.step >= 0 else "before the first step"

    @property
    def row(self) -> str:
        """The line of the summary it counts in."""
        return "ranks" if self.ranks else self.kind


@dataclass
class Tally:
    """What was compared of one kind."""

    what: str
    unit: str
    count: int = 0
    largest: float = 0.0
    """The largest difference seen."""


@dataclass(frozen=True)
class Comparison:
    """What was compared up to the first difference, and that difference."""

    tallies: dict[str, Tally]
    first: Measured | None
    """None: the runs are the same."""
    tolerance: float
    unjudged: list[str]
    """Parameters whose gradient is rounding noise: what an optimizer makes of it is not judged."""
    not_finite: tuple[int, str] | None = None
    """Step (from 0) and term of the first loss that is no number, on one rank."""

    @property
    def is_same(self) -> bool:
        return self.first is None and self.not_finite is None

    def to_json(self) -> dict[str, Any]:
        return {
            "tolerance": self.tolerance,
            "compared": [finite(to_json(tally)) for tally in self.tallies.values()],
            "first_difference": finite(to_json(self.first)),
            "unjudged": self.unjudged,
        }


def compare(one: Recording, many: Recording, tolerance: float = TOLERANCE) -> Comparison:
    """Compare the recording of one rank with that of many, in order, up to the first difference."""
    return judge(Walk(one, many, tolerance))


def judge(walk: Walk) -> Comparison:
    """Take a walk up to the first difference."""
    tallies = {
        "samples": Tally("samples asked for", "slots"),
        "batch": Tally("batch content", "slots"),
        "loss": Tally("loss terms and weights", "numbers"),
        "gradient": Tally("gradients", "tensors"),
        "weight": Tally("weights", "tensors"),
        "buffer": Tally("buffers", "tensors"),
        "ranks": Tally("rank against rank", "tensors"),
    }
    first = None
    for measured in walk.measure():
        tally = tallies[measured.row]
        tally.count += 1
        tally.largest = max(tally.largest, measured.apart)
        if measured.apart > walk.tolerance:
            first = measured
            break
    not_finite = _first_not_finite(walk.one) if first is None else None
    return Comparison(tallies, first, walk.tolerance, sorted(walk.unjudged), not_finite)


class Walk:
    """Goes through two recordings in the order of cause and effect."""

    def __init__(self, one: Recording, many: Recording, tolerance: float) -> None:
        self.one = one
        self.many = many
        self.tolerance = tolerance
        self.unjudged: set[str] = set()
        self._noise = 0.0
        """How far apart the weights are that are not judged."""

    def measure(self) -> Iterator[Measured]:
        for step in range(-1, min(self.one.num_steps, self.many.num_steps)):
            if step >= 0:
                yield from self.slots(step)
                yield from self.losses(step)
                yield from self._tensors("gradient", "gradients", step)
                self._note_noise(step)
            yield from self._tensors("weight", "parameters", step)
            self._measure_noise(step)
            yield from self._tensors("buffer", "buffers", step)

    def slots(self, step: int) -> Iterator[Measured]:
        one, many = self.one.slots(step), self.many.slots(step)
        for field in ("ids", "batch"):
            for slot in sorted({*one, *many}):
                rank, there = many.get(slot, (None, None))
                expected = getattr(one[slot][1], field) if slot in one else None
                found = getattr(there, field) if there is not None else None
                yield Measured(
                    kind="samples" if field == "ids" else "batch",
                    step=step,
                    place=f"slot {slot}",
                    one=expected,
                    many=found,
                    apart=0.0 if expected == found else math.inf,
                    rank=rank,
                )

    def losses(self, step: int) -> Iterator[Measured]:
        one, many = self.one.slots(step), self.many.slots(step)
        sums = (abs(total) for _, slot in one.values() for total, _ in slot.terms.values())
        scale = max(filter(math.isfinite, sums), default=0.0)
        for slot, (_, expected) in sorted(one.items()):
            rank, found = many[slot]
            for name in dict.fromkeys([*expected.terms, *found.terms]):
                place = f"slot {slot}, term `{name}`"
                a, b = expected.terms.get(name), found.terms.get(name)
                yield self.number(step, place, a and a[0], b and b[0], scale, rank)
                yield self.number(step, f"{place}, weight", a and a[1], b and b[1], 0, rank)
            yield from self._weights(step, f"slot {slot}", expected.weights, found.weights, rank)
        for other in self.many.ranks:
            yield from self._weights(
                step,
                "the whole step",
                self.one.ranks[0].steps[step].weights,
                other.steps[step].weights,
                other.start.rank,
            )

    def _weights(
        self, step: int, where: str, one: _Weights, many: _Weights, rank: int
    ) -> Iterator[Measured]:
        one, many = one or {}, many or {}
        for name in dict.fromkeys([*one, *many]):
            place = f"{where}, weight() of `{name}`"
            yield self.number(step, place, one.get(name), many.get(name), 0, rank)

    def number(
        self,
        step: int,
        place: str,
        one: float | None,
        many: float | None,
        scale: float,
        rank: int | None,
    ) -> Measured:
        if one is None or many is None:
            apart = 0.0 if one is many else math.inf
        elif math.isfinite(one) and math.isfinite(many):
            apart = _relative(abs(one - many), max(scale, abs(one), abs(many)))
        else:
            apart = 0.0 if str(one) == str(many) else math.inf
        return Measured(
            kind="loss", step=step, place=place, one=one, many=many, apart=apart, rank=rank
        )

    def _tensors(self, kind: Kind, field: str, step: int) -> Iterator[Measured]:
        one, many = self.one, self.many
        names = list(dict.fromkeys([*one.names(field, step), *many.names(field, step)]))
        total = norm_of_all(one, field, step)
        for name in names:
            a, b = one.whole(field, step, name), many.whole(field, step, name)
            scale = self._scale(kind, total, a, b)
            if not (kind == "weight" and name in self.unjudged):
                yield Measured(
                    kind=kind,
                    step=step,
                    place=name,
                    one=a and a.norm,
                    many=b and b.norm,
                    apart=_apart(a, b, scale, self._noise if kind == "buffer" else 0.0),
                )
            for (first, mine), *others in many.replicas(field, step, name):
                for rank, theirs in others:
                    yield Measured(
                        kind=kind,
                        step=step,
                        place=name,
                        one=mine.norm,
                        many=theirs.norm,
                        apart=_apart(mine, theirs, scale),
                        ranks=(first, rank),
                    )

    def _scale(
        self, kind: Kind, total: float, one: Fingerprint | None, many: Fingerprint | None
    ) -> float:
        """What a difference is measured by. Gradients and weights by the norm over all of them: a
        gradient that is zero but for rounding has none of its own. Buffers have nothing in common
        and are measured each by itself."""
        if kind != "buffer":
            return total
        return max(_SMALLEST_BUFFER, (one or ZERO).norm, (many or ZERO).norm)

    def _note_noise(self, step: int) -> None:
        """A gradient below the tolerance is rounding noise (a bias before a normalisation), and
        Adam makes steps of any size from it: from here on such weights are not judged."""
        for run in (self.one, self.many):
            limit = self.tolerance * norm_of_all(run, "gradients", step)
            for name in run.names("gradients", step):
                gradient = run.whole("gradients", step, name)
                if gradient is not None and 0 < gradient.norm <= limit:
                    self.unjudged.add(name)

    def _measure_noise(self, step: int) -> None:
        """What is not judged may show in a buffer: the mean before a normalisation has the bias in
        it. Fingerprints only estimate a distance; none is ten times too small."""
        pairs = (
            (self.one.whole("parameters", step, n), self.many.whole("parameters", step, n))
            for n in self.unjudged
        )
        self._noise = 10 * sum(a.distance(b) for a, b in pairs if a is not None and b is not None)


def norm_of_all(run: Recording, field: str, step: int) -> float:
    """The norm over all tensors of a kind."""
    wholes = (run.whole(field, step, name) for name in run.names(field, step))
    return math.sqrt(sum(w.squares for w in wholes if w is not None and w.is_finite))


def _apart(
    one: Fingerprint | None, many: Fingerprint | None, scale: float, noise: float = 0.0
) -> float:
    if one is None or many is None:
        return 0.0 if one is many else math.inf
    if not (one.is_finite and many.is_finite):
        return 0.0 if one.is_finite == many.is_finite else math.inf
    return _relative(max(0.0, one.distance(many) - noise), scale)


def _relative(distance: float, scale: float) -> float:
    if distance == 0:
        return 0.0
    return distance / scale if scale > 0 else math.inf


def _first_not_finite(run: Recording) -> tuple[int, str] | None:
    for step in range(run.num_steps):
        for _, (_, slot) in sorted(run.slots(step).items()):
            for name, (total, _) in slot.terms.items():
                if not math.isfinite(total):
                    return step, name
    return None
