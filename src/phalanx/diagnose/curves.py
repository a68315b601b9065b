"""What the curves of a run say: a loss that swings, stands still, rises or is no number; a loss
scale that collapses. Judged on medians of many steps, never on a few."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median, quantiles

from phalanx.diagnose.facts import facts_of_run
from phalanx.diagnose.scene import Scene
from phalanx.errors import Finding
from phalanx.run.event_kinds import Skipped, Step

_LEAST_POINTS = 40  # logged steps before a curve is judged
_SWING = 1.0  # of the mean: from the tenth to the ninetieth of a hundred losses
_FALLS = 0.97  # of a loss two quarters before: above it does not fall
_SWINGS_ON = 0.9  # of the mean two quarters before, for losses that swing
_RISES = 1.3
_COLLAPSED = 1.0  # a loss scale below it makes gradients smaller instead of larger


def judge_curves(scene: Scene) -> list[Finding]:
    """Findings about losses and loss scales; none when there is nothing to say."""
    steps = scene.of_kind(Step)
    losses = [
        (one.step, one.loss) for one in steps if one.step is not None and one.loss is not None
    ]
    facts = facts_of_run(scene)
    found = _not_finite(losses, facts)
    if not found:
        found = _shape(losses, facts)
    scales = [
        (one.step, one.loss_scale)
        for one in steps
        if one.step is not None and one.loss_scale is not None
    ]
    return found + _collapse(scales, facts) + _skipped(scene, facts)


def _not_finite(losses: Sequence[tuple[int, float]], facts: dict[str, str]) -> list[Finding]:
    bad = [step for step, loss in losses if not math.isfinite(loss)]
    if not bad:
        return []
    return [
        Finding(
            slug="not-finite-loss",
            what=f"the loss is no finite number at {len(bad)} of {len(losses)} logged steps, first "
            f"at step {bad[0]}",
            why="read from the `step` events; an overflow, a division by zero, or a learning rate "
            "that is too large",
            fix=_slower(facts) + " optimizer.clip_norm=1.0",
            severity="warning",
        )
    ]


def _shape(losses: Sequence[tuple[int, float]], facts: dict[str, str]) -> list[Finding]:
    if len(losses) < _LEAST_POINTS:
        return []
    values = [loss for _, loss in losses]
    quarter = len(values) // 4
    first, second = median(values[:quarter]), median(values[quarter : 2 * quarter])
    last = median(values[-quarter:])
    # Means: of values that jump up and down a median is one or the other.
    before, after = fmean(values[quarter : 2 * quarter]), fmean(values[-quarter:])
    half = sorted(values[-len(values) // 2 :])
    low, high = quantiles(half, n=10)[0], quantiles(half, n=10)[-1]
    middle = fmean(half)
    if middle <= 0:  # a loss that may be negative has no scale of its own
        return []
    steps = f"steps {losses[-len(half)][0]} to {losses[-1][0]}"
    if high - low > _SWING * middle and after > _SWINGS_ON * before:
        return [
            Finding(
                slug="loss-oscillates",
                what=f"the loss swings between {low:.4g} and {high:.4g} and does not fall",
                why=f"tenth and ninetieth of a hundred losses in {steps}, mean {middle:.4g}; its "
                f"mean was {before:.4g} in the second quarter and is {after:.4g} in the last: as a "
                "rule the learning rate is too large for the batch, or the warm-up too short",
                fix=f"{_slower(facts)} schedule.warmup='5%'; or a larger batch: twice the "
                "gradient_accumulation",
                severity="warning",
            )
        ]
    best = min(first, second, median(values[2 * quarter : 3 * quarter]))
    if last > _RISES * best:
        return [
            Finding(
                slug="loss-rises",
                what=f"the loss rises: {best:.4g} at its best quarter, {last:.4g} at the end",
                why=f"medians of quarters of {len(values)} logged steps",
                fix=_slower(facts),
                severity="warning",
            )
        ]
    if last > _FALLS * first:
        return [
            Finding(
                slug="loss-flat",
                what=f"the loss does not fall: {first:.4g} in the first quarter, {last:.4g} in the "
                "last",
                why=f"medians of quarters of {len(values)} logged steps; nothing learns, or the "
                "learning rate is far too small or too large",
                fix="phalanx verify JOB shows what gets gradients; then another rate (`--lr`)",
                severity="warning",
            )
        ]
    return []


def _collapse(scales: Sequence[tuple[int, float]], facts: dict[str, str]) -> list[Finding]:
    if not scales or scales[-1][1] >= _COLLAPSED:
        return []
    step, scale = scales[-1]
    return [
        Finding(
            slug="fp16-scale-collapsed",
            what=f"the fp16 loss scale is {scale:g} at step {step}; it was "
            f"{max(value for _, value in scales):g}",
            why="it is halved at every step whose gradients overflow, and those steps are skipped",
            fix=f"{facts.get('again', 'phalanx train JOB')} precision=bf16; before Ampere a tenth "
            f"of the rate: optimizer.lr={facts.get('lr_tenth', 'LR')}",
            severity="warning",
        )
    ]


def _skipped(scene: Scene, facts: dict[str, str]) -> list[Finding]:
    """Steps that changed nothing. fp16 skips a few while it looks for its scale."""
    skipped = scene.of_kind(Skipped)
    done = max((one.step for one in skipped), default=0)
    if not skipped or (scene.planned("precision") == "fp16" and len(skipped) < 0.1 * done):
        return []
    last = skipped[-1]
    which = f"; samples of the last: {str(last.ids)[:200]}" if last.ids else ""
    return [
        Finding(
            slug="steps-skipped",
            what=f"{len(skipped)} steps changed nothing, because loss or gradients were not "
            f"finite, the last at step {last.step}",
            why=f"`skipped` events{which}",
            fix=f"{_slower(facts)} optimizer.clip_norm=1.0; and look at those samples",
            severity="warning",
        )
    ]


def _slower(facts: dict[str, str]) -> str:
    again = facts.get("again", "phalanx train JOB")
    return f"{again} optimizer.lr={facts.get('lr_tenth', 'LR')}"
