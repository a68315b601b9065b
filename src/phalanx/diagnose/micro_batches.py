"""Do the micro-batches that a plan chooses change what is trained? A run on one rank is compared
with one on many ranks, each in its own micro-batches. Slots have nothing in common then, so each
step is compared as a whole: samples -> loss terms -> gradients -> weights -> buffers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from phalanx.diagnose.compare import Comparison, Measured, Walk, judge
from phalanx.diagnose.difference_cause import KEYS, explain_not_finite, explain_rounding
from phalanx.diagnose.evidence import ROUNDING, Evidence, numbers
from phalanx.diagnose.recording import Recording
from phalanx.errors import Finding, name_some

_ANY_TERM = "*"  # the name in weight() that stands for every term

_SUM = (
    'sum over the targets and return their number, `Term(F.cross_entropy(..., reduction="sum"), '
    "num_targets)` from loss() and the same number from weight()"
)


@dataclass(frozen=True)
class Cuts:
    """How the global batch is cut on the two sides."""

    one: int
    """The micro-batch on 1 rank."""
    many: int
    ranks: int
    is_synced: bool = False
    """True if BatchNorm computes its statistics over all ranks."""
    is_even: bool = True
    """True if all micro-batches of every step have one size, on both sides."""
    fix: str = ""
    """The line that gives both sides the same micro-batch; empty where they have it."""

    @property
    def sides(self) -> tuple[str, str]:
        return (
            f"on 1 rank in micro-batches of {self.one}",
            f"on {self.ranks} ranks in micro-batches of {self.many}",
        )


def compare_cuts(one: Recording, many: Recording, tolerance: float, cuts: Cuts) -> Comparison:
    """Compare a run on one rank with one on many in other micro-batches."""
    compared = judge(_CutWalk(one, many, tolerance, weights_count=not cuts.is_even))
    compared.tallies["samples"].unit = "steps"
    del compared.tallies["batch"]
    return compared


class _CutWalk(Walk):
    """Goes through two recordings whose steps are cut differently."""

    def __init__(
        self, one: Recording, many: Recording, tolerance: float, *, weights_count: bool
    ) -> None:
        super().__init__(one, many, tolerance)
        self._weights_count = weights_count

    def slots(self, step: int) -> Iterator[Measured]:
        one, many = (_samples(run, step) for run in (self.one, self.many))
        apart = 0.0 if one == many else math.inf
        yield Measured(
            kind="samples", step=step, place="the whole step", one=one, many=many, apart=apart
        )

    def losses(self, step: int) -> Iterator[Measured]:
        one, many = (_totals(run, step) for run in (self.one, self.many))
        scale = max(
            (abs(mean) for mean in map(_mean, one.values()) if math.isfinite(mean)), default=0
        )
        for name in dict.fromkeys([*one, *many]):
            a, b = one.get(name), many.get(name)
            yield self.number(step, f"term `{name}`", a and _mean(a), b and _mean(b), scale, None)
            if self._weights_count:
                yield self.number(step, f"weight of `{name}`", a and a[1], b and b[1], 0, None)


def _samples(run: Recording, step: int) -> list[int]:
    return [sample for _, (_, slot) in sorted(run.slots(step).items()) for sample in slot.ids]


def _totals(run: Recording, step: int) -> dict[str, tuple[float, float]]:
    """Sum and weight of each term over a step, as the objective has them."""
    totals: dict[str, tuple[float, float]] = {}
    for _, (_, slot) in sorted(run.slots(step).items()):
        for name, (total, weight) in slot.terms.items():
            before = totals.get(name, (0.0, 0.0))
            totals[name] = before[0] + total, before[1] + weight
    known = run.ranks[0].steps[step].weights
    if known is None:  # it depends on the predictions
        return totals
    return {n: (total, known.get(n, known.get(_ANY_TERM, 0.0))) for n, (total, _) in totals.items()}


def _mean(total: tuple[float, float]) -> float:
    return total[0] / total[1] if total[1] else 0.0


def explain_cuts(
    compared: Comparison,
    one: Recording,
    many: Recording,
    cuts: Cuts,
    try_synced: Callable[[], Comparison | None] = lambda: None,
) -> Finding | None:
    """The first difference with its usual cause; None when the runs are the same. `try_synced`
    repeats the comparison with `sync_batchnorm`, where that can be the cure."""
    if compared.first is None:
        return explain_not_finite(compared)
    return _CutCause(compared, compared.first, one, many, cuts, try_synced).find()


class _CutCause:
    """Reads one cause from the evidence."""

    def __init__(
        self,
        compared: Comparison,
        first: Measured,
        one: Recording,
        many: Recording,
        cuts: Cuts,
        try_synced: Callable[[], Comparison | None],
    ) -> None:
        self._first = first
        self._one = one
        self._many = many
        self._cuts = cuts
        self._try_synced = try_synced
        self._evidence = Evidence(first, one, many, compared.tolerance)

    def find(self) -> Finding:
        first, step = self._first, max(self._first.step, 0)
        one, many = (_totals(run, step) for run in (self._one, self._many))
        unequal = [n for n in one if n in many and not math.isclose(one[n][1], many[n][1])]
        content = self._evidence.content_of_step(self._cuts.sides)
        if content:
            return self._data(content)
        if unequal and self._one.ranks[0].steps[step].weights is not None:
            return self._weight(unequal[0], one, many)
        if first.apart < ROUNDING:
            return explain_rounding(self._what())
        if self._is_random(step):
            return self._draws()
        changed = self._evidence.buffers_changed()
        if self._evidence.statistics_changed():
            synced = self._try_synced()
            if synced is None or synced.is_same:
                return self._batchnorm(synced)
        if changed:
            return self._buffers(changed)
        if unequal:
            return self._weight(unequal[0], one, many)
        return self._sum(one, many) if first.kind == "loss" else self._after_the_loss()

    def _what(self) -> str:
        first, (a, b) = self._first, self._cuts.sides
        if first.kind == "samples":
            return f"{first.when}: other samples {a} than {b}"
        is_tensor = first.kind != "loss"
        name = f"the {first.kind} of `{first.place}`" if is_tensor else f"the {first.place}"
        return self._evidence.describe(name, (a, b))

    def _is_random(self, step: int) -> bool:
        runs = (self._one, self._many)
        return any(slot.is_random for run in runs for _, slot in run.slots(step).values())

    def _data(self, content: list[str]) -> Finding:
        return Finding(
            slug="verify-data-random",
            what=self._what(),
            why="the same samples were asked for, their content differs: "
            f"{'; '.join(content[:3])}; the data set draws from a global generator, which is "
            "seeded per micro-batch",
            fix=f"{KEYS}{self._or_cut_alike}",
        )

    def _weight(
        self, name: str, one: dict[str, tuple[float, float]], many: dict[str, tuple[float, float]]
    ) -> Finding:
        a, b = self._cuts.sides
        return Finding(
            slug="verify-loss-weight",
            what=self._what(),
            why=f"the weight of `{name}` over the same {self._num_samples} samples is "
            f"{one[name][1]:g} {a} and {many[name][1]:g} {b}: it counts micro-batches, so a sample "
            "or token counts more in a small one; usually the loss is an average over the "
            "micro-batch's own samples or tokens",
            fix=_SUM,
        )

    def _sum(
        self, one: dict[str, tuple[float, float]], many: dict[str, tuple[float, float]]
    ) -> Finding:
        name = self._first.place.removeprefix("term ").strip("`")
        a, b = self._cuts.sides
        sums = numbers(one[name][0], many[name][0]) if name in one and name in many else ("", "")
        return Finding(
            slug="verify-loss-weight",
            what=self._what(),
            why=f"the same {self._num_samples} samples with the same weight "
            f"{one.get(name, (0.0, 0.0))[1]:g} sum up to {sums[0]} {a} and {sums[1]} {b}: what a "
            "sample adds depends on the others in its micro-batch. Usually the loss is an average "
            "over the micro-batch's own tokens, and its weight is not the number of them; else it "
            "compares the samples of a micro-batch with each other",
            fix=f"{_SUM}{self._or_cut_alike}",
        )

    def _draws(self) -> Finding:
        return Finding(
            slug="verify-draws",
            what=self._what(),
            why="model or loss draws from torch's generator, which is seeded per micro-batch; "
            "dropout was disabled, so this is other noise, and nothing after it can be compared",
            fix=f"{KEYS}{self._or_cut_alike}",
        )

    def _batchnorm(self, synced: Comparison | None) -> Finding:
        cuts = self._cuts
        over = f"{cuts.many} on {cuts.ranks} ranks, as the plan cuts the global batch"
        fix, tried = cuts.fix, ""
        if cuts.is_synced:
            over = (
                f"{cuts.ranks} x {cuts.many} others on {cuts.ranks} ranks, those that run at the "
                "same time (sync_batchnorm = true)"
            )
            fix = f"sync_batchnorm=false {cuts.fix}".strip()
        if synced is not None:
            fix = f"sync_batchnorm=true; or {cuts.fix}"
            largest = max(tally.largest for tally in synced.tallies.values())
            tried = f"; tried: with sync_batchnorm=true they are the same, to {largest:.1e}"
        return Finding(
            slug="verify-batchnorm",
            what=self._what(),
            why=f"BatchNorm takes its statistics over {cuts.one} samples on 1 rank and {over}; "
            f"with the same micro-batches both are the same{tried}",
            fix=fix,
        )

    def _buffers(self, changed: list[str]) -> Finding:
        return Finding(
            slug="verify-buffers",
            what=self._what(),
            why=f"forward changes {name_some(changed)} once per micro-batch: its value depends on "
            "how many there are",
            fix=f"GroupNorm and LayerNorm keep no such value{self._or_cut_alike}",
        )

    def _after_the_loss(self) -> Finding:
        return Finding(
            slug="verify-micro-batch",
            what=self._what(),
            why="the losses are equal: something in backward, or something that writes into a "
            "weight, is done once per micro-batch or knows its size",
            fix=f"look at hooks and at what writes into `{self._first.place}`{self._or_cut_alike}",
        )

    @property
    def _num_samples(self) -> int:
        return len(_samples(self._one, max(self._first.step, 0)))

    @property
    def _or_cut_alike(self) -> str:
        return f"; or {self._cuts.fix}" if self._cuts.fix else ""


def about_dropout(recording: Recording, cuts: Cuts) -> Finding | None:
    """A note on dropout that was disabled to compare micro-batches."""
    names = recording.disabled_dropout
    if not names:
        return None
    return Finding(
        slug="verify-dropout",
        what=f"dropout was disabled to compare micro-batches of {cuts.one} and {cuts.many}: "
        f"{name_some(names)}",
        why="its masks are drawn per micro-batch: `train` draws others on 1 rank than on "
        f"{cuts.ranks} ranks, in the same distribution; in the same micro-batches it was compared",
        fix=f"nothing to do; or {cuts.fix} for the same masks",
        severity="note",
    )
