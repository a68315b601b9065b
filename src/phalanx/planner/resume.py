"""May this run continue? Compares what a run was with what it would be now, and names it."""

from __future__ import annotations

from typing import Any

from phalanx.errors import Finding
from phalanx.planner.schema.plan import Plan

# With another seed, batch or data size the sample order of the first part cannot be continued.
_FIXED = ("recipe", "seed", "global_batch_size", "num_samples")


def resume_findings(before: Plan, now: Plan, *, accept_changes: bool) -> list[Finding]:
    """One Finding per difference; those that cannot be accepted are errors."""
    findings = []
    for key in sorted(set(before.history.identity) | set(now.history.identity)):
        old, new = before.history.identity.get(key), now.history.identity.get(key)
        if old == new:
            continue
        is_fixed = key in _FIXED
        findings.append(
            Finding(
                slug="resume-differs",
                what=f"`{key}` is not what it was when the run was made",
                why=_difference(old, new),
                fix=(
                    "start a new run from its weights: `init_from: RUN`"
                    if is_fixed
                    else "take the change back, or continue all the same: `--accept-changes`"
                ),
                severity="warning" if accept_changes and not is_fixed else "error",
            )
        )
    if before.batch.total_steps.value != now.batch.total_steps.value:
        findings.append(
            Finding(
                slug="resume-length",
                what=f"the run had {before.batch.total_steps.value} steps, now it has "
                f"{now.batch.total_steps.value}",
                why="the learning-rate schedule stretches to the new length",
                fix="nothing, if that is what you want",
                severity="warning",
            )
        )
    return findings


def _difference(old: Any, new: Any) -> str:
    if isinstance(old, dict) and isinstance(new, dict):
        changed = [k for k in sorted(set(old) | set(new)) if old.get(k) != new.get(k)]
        return "; ".join(f"{k}: {old.get(k)} then, {new.get(k)} now" for k in changed)
    return f"{old} then, {new} now"
