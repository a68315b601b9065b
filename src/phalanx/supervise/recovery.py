"""What a run does after a rank ran out of memory: the next plan revision, or why there is none. And
after a rung of speed was dropped.

It has no budget but its own end: sizes only shrink, and the allocator is changed once."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from phalanx.errors import Finding, format_bytes
from phalanx.planner.memory.prediction import predict_parts
from phalanx.planner.revise import (
    changes_between,
    drop_rung,
    grow_segments,
    halve_evaluate_batch,
    halve_micro_batch,
    recompute_activations,
    what_would_fit,
    why_not_smaller,
)
from phalanx.planner.schema.plan import Plan
from phalanx.run.event_kinds import Change, Dropped, Outcome, RevisionMade
from phalanx.supervise.outcomes import RankEnd


@dataclass(frozen=True)
class Revision:
    """A plan changed on the way."""

    plan: Plan
    reason: str
    changes: dict[str, dict[str, Any]]
    step: int | None

    def event(self) -> RevisionMade:
        return RevisionMade(
            revision=self.plan.revision,
            reason=self.reason,
            changes={name: Change(**change) for name, change in self.changes.items()},
            step=self.step,
        )


def find_memory_failure(ends: Iterable[RankEnd]) -> Outcome | None:
    """The first rank that ran out of memory. Peers that lost their connection to it may have
    recorded their end earlier, but are not the cause."""
    failed = [end for end in ends if end.outcome.memory is not None]
    first = min(failed, key=lambda end: end.time_s, default=None)
    return None if first is None else first.outcome


def revise_plan(plan: Plan, failure: Outcome) -> Revision | None:
    """The plan that needs less memory where it ran out; None when there is none."""
    memory, phase, step, said = failure.memory, failure.phase, failure.step, failure.reason
    if memory is None:
        return None
    tried, idle = memory.tried_bytes, memory.idle_bytes
    if tried is not None and idle is not None and idle > tried:
        revised = grow_segments(plan, os.environ)
        if revised is not None:
            reason = f"{said}; the memory is there but fragmented: tried once more with segments"
            return revision_between(plan, revised, f"{reason} that grow", step)
    if phase == "evaluate":
        revised = halve_evaluate_batch(plan)
        return revision_between(plan, revised, said, step) if revised is not None else None
    if phase == "start":  # building and loading the model knows nothing of micro-batches
        return None
    revised = halve_micro_batch(plan)
    if revised is None:
        revised = recompute_activations(plan)
        if revised is None:
            return None
        return revision_between(
            plan, revised, f"{said}; {why_not_smaller(plan)}; no bit changes", step
        )
    kept = f"the global batch stays {plan.batch.global_batch_size.value}"
    return revision_between(plan, revised, f"{said}; {kept}; {_what_differs(plan)}", step)


def without_rung(plan: Plan, dropped: Dropped) -> Revision:
    """The plan without a rung of speed, as the ranks go on."""
    rung, reason = dropped.rung, dropped.reason
    return revision_between(plan, drop_rung(plan, rung, reason), reason, None)


def does_not_fit(plan: Plan, failure: Outcome, *, is_fp64_needed: bool = False) -> Finding:
    """Why no smaller plan is left, and what would help."""
    phase = failure.phase
    if phase == "start":
        what = "the model does not fit, before any micro-batch"
    elif phase == "evaluate":
        size = plan.evaluation.evaluate_batch_size.value
        what = f"an evaluation of {size} sample at a time does not fit"
    else:
        size = plan.micro_batches.largest_slot
        what = f"a micro-batch of {size} sample{'s' if size > 1 else ''} does not fit"
    asked = plan.history.shrunk.get("micro_batch_size")
    before = f"; the micro-batch was {asked} at first" if asked is not None else ""
    if phase not in ("start", "evaluate"):
        before += f"; {why_not_smaller(plan)}"
    parts = predict_parts(plan)
    return Finding(
        slug="does-not-fit",
        what=f"{what}: {failure.reason}",
        why=f"predicted on each rank in {plan.numerics.precision.value}: {parts}"
        f"{'' if parts.activations is not None else ' + activations, which are not known'}; "
        f"{format_bytes(parts.state)} of it whatever the micro-batch{before}",
        fix="; ".join(what_would_fit(plan, is_fp64_needed=is_fp64_needed)),
    )


def revision_between(old: Plan, new: Plan, reason: str, step: int | None) -> Revision:
    """Of two plans, with what differs."""
    return Revision(new, reason, changes_between(old, new), step)


def _what_differs(plan: Plan) -> str:
    if plan.numerics.determinism.value == "exact":
        return "the bits are from here on those of a run with the new micro-batch"
    if plan.numerics.has_batchnorm:
        where = (
            "the micro-batches of a round"
            if plan.numerics.sync_batchnorm.value
            else "a micro-batch"
        )
        return (
            f"BatchNorm takes its statistics over {where} and dropout is drawn per micro-batch, "
            "so the curve changes slightly"
        )
    return "the loss curve is the same, except that dropout is drawn per micro-batch"
