"""How long a run is, and how often it evaluates and saves."""

from __future__ import annotations

from phalanx.job.schema import Job
from phalanx.job.values import Interval
from phalanx.planner.learning_rate import in_steps
from phalanx.planner.plan import Decision
from phalanx.planner.trace import Trace


def choose_length(job: Job, per_epoch: int) -> Decision[int]:
    """Optimizer steps of the run."""
    if job.steps is not None:
        return Decision(job.steps, f"steps = {job.steps}")
    assert job.epochs is not None
    value = job.epochs * per_epoch
    return Decision(value, f"{job.epochs} epochs x {per_epoch} steps = {value}")


def choose_evaluation(
    job: Job, trace: Trace, total_steps: int, per_epoch: int
) -> Decision[int | None]:
    """Steps between evaluations."""
    if trace.num_test_samples == 0:
        return Decision(None, "the recipe has no test split")
    every = job.evaluate.every
    if every is None:
        return Decision(None, "evaluate.every = null: only at the end")
    steps = in_steps(every, total_steps=total_steps, steps_per_epoch=per_epoch)
    return Decision(steps, f"every {every}, and at the end")


def choose_saving(
    job: Job, total_steps: int, per_epoch: int
) -> tuple[Decision[int | None], Decision[float | None]]:
    """Steps or seconds between checkpoints."""
    every = job.checkpoint.every
    if every is None:
        return (Decision(None, "only at the end"), Decision(None, "checkpoint.every = null"))
    reason = f"checkpoint.every = {every}; also the best, and at the end"
    if isinstance(every, Interval) and every.unit == "minutes":
        return Decision(None, "counted in minutes"), Decision(every.count * 60, reason)
    steps = in_steps(every, total_steps=total_steps, steps_per_epoch=per_epoch)
    return Decision(steps, reason), Decision(None, "counted in steps")
