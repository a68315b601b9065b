"""What two recordings say around the first difference between them: who had it, by how much, what
else is unusual there. `diagnose.cause` reads a cause from it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from phalanx.diagnose.compare import Measured
from phalanx.diagnose.recording import Fingerprint, Recording, SlotRecord, StartRecord
from phalanx.errors import name_some

ROUNDING = 1e-5  # float32 keeps seven digits; more than this apart is no rounding of it


class Evidence:
    """Answers questions about one difference."""

    def __init__(self, first: Measured, one: Recording, many: Recording, tolerance: float) -> None:
        self._first = first
        self._one = one
        self._many = many
        self._tolerance = tolerance

    @property
    def start(self) -> StartRecord:
        """What a rank of the many began with."""
        return self._many.ranks[0].start

    def describe(self, name: str, sides: tuple[str, str]) -> str:
        """When and where it is, both values, how far apart."""
        first = self._first
        a, b = sides if first.ranks is None else (f"on rank {rank}" for rank in first.ranks)
        norm = "norm " if first.kind != "loss" and None not in (first.one, first.many) else ""
        one, many = numbers(first.one, first.many)
        apart = ""
        if math.isfinite(first.apart):
            apart = f"; {first.apart:.2g} apart (relative), {self._tolerance:g} is allowed"
        return f"{first.when}, {name}: {norm}{one} {a}, {many} {b}{apart}"

    def ranks_that_differ(self) -> str:
        """Which ranks had slots that differ in this step, in words."""
        step = self._first.step
        one = self._one.slots(step)
        wrong: dict[int, int] = {}
        for slot, (rank, found) in self._many.slots(step).items():
            if self._first.kind == "batch":
                differs = one[slot][1].batch != found.batch
            else:
                differs = any(True for _ in self._ratios(one[slot][1], found))
            wrong[rank] = wrong.get(rank, 0) + differs
        right = [f"rank {rank}" for rank, count in sorted(wrong.items()) if not count]
        others = [f"rank {rank}" for rank, count in sorted(wrong.items()) if count]
        if right:
            return f"slots of {name_some(right)} are equal, slots of {name_some(others)} are not"
        return f"slots of all {len(others)} ranks differ" if others else "its slots are equal"

    def parts_that_differ(self) -> list[str]:
        """The parts of the batch of which some sample's row differs."""
        expected, found = self._pair()
        return [
            part for part, rows in expected.samples.items() if rows != found.samples.get(part, rows)
        ]

    def content_that_differs(self) -> list[str]:
        """The same element by element, where the batch was small enough to be kept."""
        return self._content(self._slot, ("on 1 rank", f"on {self._many.world} ranks"))

    def content_of_step(self, sides: tuple[str, str]) -> list[str]:
        """The same sample by sample, whatever their slots."""
        return self._content(None, sides) if self._first.step >= 0 else []

    def _content(self, slot: int | None, sides: tuple[str, str]) -> list[str]:
        from phalanx.diagnose.content import describe_parts, read_content

        one, many = (read_content(run, self._first.step, slot) for run in (self._one, self._many))
        return [] if one is None or many is None else list(describe_parts(one, many, sides))

    def nearest_sample(self) -> tuple[int, int, str] | None:
        """A sample that differs, the one whose content it is nearest to, and the part that shows
        it; None where that cannot be told."""
        from phalanx.diagnose.content import Content, nearest_sample, read_content

        found = read_content(self._many, self._first.step, self._slot)
        known = Content()
        for step in range(self._one.num_steps):
            for part, rows in (read_content(self._one, step) or Content()).rows.items():
                known.rows.setdefault(part, {}).update(rows)
        return None if found is None else nearest_sample(found, known)

    def is_another_sample(self) -> bool:
        """Whether everything about a sample differs, not only what is drawn at random."""
        parts = self.parts_that_differ()
        return len(parts) > 1 and parts == list(self._pair()[0].samples)

    def sample_given_instead(self) -> str | None:
        """A sample of which some telling part is that of another sample, in words."""
        known: dict[str, dict[str, int]] = {}
        all_ids: set[int] = set()
        # One rank comes last: what it was given is what a sample really is.
        for run in (self._many, self._one):
            for step in range(run.num_steps):
                for _, record in run.slots(step).values():
                    all_ids.update(record.ids)
                    for part, rows in record.samples.items():
                        known.setdefault(part, {}).update(zip(rows, record.ids, strict=True))
        step = self._first.step
        for slot, (_, found) in sorted(self._many.slots(step).items()):
            expected = self._one.slots(step)[slot][1]
            for part, rows in found.samples.items():
                if 2 * len(known[part]) < len(all_ids):
                    continue  # a label: many samples have the same
                triples = zip(found.ids, rows, expected.samples.get(part, rows), strict=True)
                for asked, row, right in triples:
                    if row != right and known[part][row] != asked:
                        return (
                            f"asked for sample {asked}, it gave the `{part}` of {known[part][row]}"
                        )
        return None

    def collectives(self) -> list[str]:
        """Lines of the recipe that talk to other ranks."""
        slots = self._many.slots(self._first.step).values()
        return sorted({line for _, record in slots for line in record.collectives})

    def world_factor(self) -> str | None:
        """`1/2` or `2 times`, when all that differs does so by the number of ranks."""
        first, step = self._first, self._first.step
        if first.kind == "loss":
            one = self._one.slots(step)
            ratios = [
                ratio
                for slot, (_, found) in self._many.slots(step).items()
                for ratio in self._ratios(one[slot][1], found)
            ]
        else:
            ratios = [first.many / first.one] if first.one and first.many else []
        world = self._many.world
        for factor, text in ((1 / world, f"1/{world}"), (world, f"{world} times")):
            if ratios and all(math.isclose(ratio, factor, rel_tol=1e-6) for ratio in ratios):
                return text
        return None

    def is_rounding(self) -> bool:
        """Whether a part that computes in float32 explains it: it turns the last bit of a float64
        into one of its own. In the first step both sides compute the same slots from the same bits,
        but a gradient is the sum of slots that were scaled by the number of ranks."""
        first = self._first
        return (first.step > 0 or first.kind == "gradient") and first.apart < ROUNDING

    def buffers_changed(self) -> list[str]:
        """Buffers, other than BatchNorm's, that are not what they were at the start."""
        return [name for name in self._changed() if name not in self.start.statistics]

    def statistics_changed(self) -> list[str]:
        """BatchNorm's buffers that are not what they were at the start."""
        return [name for name in self._changed() if name in self.start.statistics]

    def _changed(self) -> list[str]:
        one, step = self._one, self._first.step
        return [
            name
            for name in one.names("buffers", -1)
            if one.whole("buffers", -1, name) != one.whole("buffers", step, name)
        ]

    def disagreement(self, field: str) -> str | None:
        """How the ranks disagree on the tensor, in words; None when they agree."""
        first = self._first
        for (rank, mine), *others in self._many.replicas(field, first.step, first.place):
            for other, theirs in others:
                if self._differ(mine, theirs):
                    a, b = numbers(mine.norm, theirs.norm)
                    return f"norm {a} on rank {rank}, {b} on rank {other}"
        return None

    def _differ(self, one: Fingerprint, other: Fingerprint) -> bool:
        return one.distance(other) > self._tolerance * max(one.norm, other.norm)

    def _pair(self) -> tuple[SlotRecord, SlotRecord]:
        step, slot = self._first.step, self._slot
        return self._one.slots(step)[slot][1], self._many.slots(step)[slot][1]

    @property
    def _slot(self) -> int:
        return int(self._first.place.split(",")[0].removeprefix("slot "))

    def _ratios(self, expected: SlotRecord, found: SlotRecord) -> Iterator[float]:
        """many / one of every sum and weight of a term that differs between two slots."""
        nothing = (math.nan, math.nan)
        for name, values in expected.terms.items():
            for one, many in zip(values, found.terms.get(name, nothing), strict=True):
                if not math.isclose(one, many, rel_tol=self._tolerance, abs_tol=0.0):
                    yield many / one if one else math.inf


def numbers(one: float | None, many: float | None) -> tuple[str, str]:
    """Both numbers, with as many digits as it takes to see the difference, if there is one."""
    for digits in (6, 10, 17):
        pair = _written(one, digits), _written(many, digits)
        if pair[0] != pair[1]:
            return pair
    return _written(one, 6), _written(many, 6)


def _written(value: float | None, digits: int) -> str:
    return "not there" if value is None else f"{value:.{digits}g}"
