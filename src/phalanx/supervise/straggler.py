"""Whether one rank is slower than the others, which all wait for it in every step.

What a rank does alone is compared: fetching data, the forward, the update, in seconds per step as
its training thread counts them (run/heartbeat.py), over windows of some seconds. Backward is left
out, because it ends with waiting for the others; so are forward and update where they wait too
(FSDP, DeepSpeed, synchronised BatchNorm) or where the host only hands out work (GPUs). What cannot
be seen this way: a rank that is slow in backward alone, and a slow GPU.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from phalanx.errors import Finding, format_seconds
from phalanx.job.strategies import facts_of
from phalanx.planner.schema.plan import Plan
from phalanx.run.heartbeat import Beat, Part, Phase

_WINDOW_S = 5.0
_WINDOW_STEPS = 20
_WINDOWS = 3  # in a row, before it is said
_FACTOR = 1.5
_OF_STEP = 0.2  # less than this share of a step is not worth a word
_SHARES_LOOKED_AT = 20

_WORDS = {Part.DATA: "fetching data", Part.FORWARD: "the forward", Part.UPDATE: "the update"}


@dataclass(frozen=True)
class Slow:
    """A rank that was slower than the others in one part of steps."""

    rank: int
    part: Part
    factor: float
    own_s: float
    usual_s: float
    step_s: float


class StragglerWatch:
    """Says once of each rank that it is slow."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._begun: tuple[float, dict[int, Beat]] | None = None
        self._in_a_row: dict[tuple[int, Part], int] = {}
        self._said: set[int] = set()
        self._parts = comparable_parts(plan)

    def new_attempt(self, plan: Plan) -> None:
        self._plan, self._begun, self._in_a_row = plan, None, {}
        self._parts = comparable_parts(plan)

    def look(self, beats: Mapping[int, Beat], now: float) -> list[Finding]:
        """What is to be said, by what was heard of all ranks last."""
        if len(beats) < max(2, self._plan.devices.ranks.value):
            return []
        if any(beat.phase in (Phase.START, Phase.COMPILE) for beat in beats.values()):
            self._begun = None
            return []
        if self._begun is None:
            self._begun = now, dict(beats)
            return []
        since, before = self._begun
        steps = min(beats[rank].step - before[rank].step for rank in beats if rank in before)
        if now - since < _WINDOW_S or steps < _WINDOW_STEPS:
            return []
        self._begun = now, dict(beats)
        slow = self._compare(before, beats, (now - since) / steps)
        found = {(one.rank, one.part) for one in slow}
        self._in_a_row = {key: self._in_a_row.get(key, 0) + 1 for key in found}
        new = [
            one
            for one in slow
            if self._in_a_row[one.rank, one.part] >= _WINDOWS and one.rank not in self._said
        ]
        self._said |= {one.rank for one in new}
        return [_finding(one) for one in new]

    def _compare(
        self, before: Mapping[int, Beat], after: Mapping[int, Beat], step_s: float
    ) -> list[Slow]:
        """The ranks that took longer than the middle one of the others, in their worst part."""
        slow = []
        for rank in after:
            worst: Slow | None = None
            for part in self._parts:
                spent = {r: _per_step(before[r], after[r], part) for r in after if r in before}
                usual_s = statistics.median(s for r, s in spent.items() if r != rank)
                factor = spent[rank] / max(usual_s, 1e-9)
                is_much = spent[rank] - usual_s > _OF_STEP * step_s
                if factor < _FACTOR or not is_much or (worst and factor <= worst.factor):
                    continue
                factor /= self._fair_factor(rank, after[rank].step)
                if factor >= _FACTOR:
                    worst = Slow(rank, part, factor, spent[rank], usual_s, step_s)
            if worst is not None:
                slow.append(worst)
        return slow

    def _fair_factor(self, rank: int, step: int) -> float:
        """How much more than the others this rank was given: slots do not always divide evenly."""
        plan, world = self._plan, self._plan.devices.ranks.value
        steps = range(max(0, step - _SHARES_LOOKED_AT), step) or range(1)
        slots, samples = [0] * world, [0] * world
        for number in steps:
            for other in range(world):
                mine = plan.micro_batches.share_of(number, other, world).slots
                slots[other] += len(mine)
                samples[other] += sum(slot.stop - slot.start for slot in mine)
        factors = [1.0]
        for counted in (slots, samples):
            usual = statistics.median(counted[:rank] + counted[rank + 1 :])
            factors.append(counted[rank] / usual if usual else 1.0)
        return max(factors)


def comparable_parts(plan: Plan) -> list[Part]:
    """What a rank does without waiting for another one, and is done when it says so."""
    waits = plan.numerics.sync_batchnorm.value or facts_of(plan.parallel.strategy.value).is_lockstep
    if waits or plan.devices.device.value != "cpu":
        return [Part.DATA]
    return [Part.DATA, Part.FORWARD, Part.UPDATE]


def _per_step(before: Beat, after: Beat, part: Part) -> float:
    return (after.seconds[part] - before.seconds[part]) / max(1, after.step - before.step)


def _finding(slow: Slow) -> Finding:
    own, usual = format_seconds(slow.own_s), format_seconds(slow.usual_s)
    return Finding(
        slug="straggler",
        what=f"rank {slow.rank} takes {slow.factor:.1f} times as long as the others in "
        f"{_WORDS[slow.part]}, and all wait for it",
        why=f"{own} per step, the middle one of the others {usual}, in {_WINDOWS} windows in a "
        f"row; a step takes {format_seconds(slow.step_s)}",
        fix="look at its machine: other processes on its cores, its disk, its clock; "
        f"`logs/rank-{slow.rank}.log`",
        severity="warning",
    )
