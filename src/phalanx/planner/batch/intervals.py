"""How long a run is, and how often it evaluates and saves."""

from __future__ import annotations

from phalanx.job.schema import Job
from phalanx.planner.batch.learning_rate import in_steps
from phalanx.planner.schema.plan import Decision
from phalanx.planner.schema.trace import Trace


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


_AUTO_SAVE_S = 600.0
_AUTO_SAVE_SHARE = 0.01


def choose_saving(
    job: Job, total_steps: int, per_epoch: int
) -> tuple[Decision[int | None], Decision[float | None]]:
    """Steps or seconds between checkpoints."""
    every = job.checkpoint.every
    if every == "auto":
        minutes = f"{_AUTO_SAVE_S / 60:.0f} minutes"
        return (
            Decision(per_epoch, "checkpoint.every = auto: each epoch; also the best, and the end"),
            Decision(_AUTO_SAVE_S, f"checkpoint.every = auto: {minutes}, where epochs are longer"),
        )
    if every is None:
        return (Decision(None, "only at the end"), Decision(None, "checkpoint.every = null"))
    reason = f"checkpoint.every = {every}; also the best, and at the end"
    if every.unit == "minutes":
        return Decision(None, "counted in minutes"), Decision(every.count * 60, reason)
    steps = in_steps(every, total_steps=total_steps, steps_per_epoch=per_epoch)
    return Decision(steps, reason), Decision(None, "counted in steps")


def choose_save_share(job: Job) -> Decision[float | None]:
    """How much of the time training may stand still for checkpoints."""
    if job.checkpoint.every != "auto":
        return Decision(None, f"checkpoint.every = {job.checkpoint.every}, whatever it takes")
    return Decision(
        _AUTO_SAVE_SHARE,
        "checkpoint.every = auto: what is due waits until one more, as long as the last that was "
        f"measured, keeps all of them below {_AUTO_SAVE_SHARE:.0%} of the time",
    )


def choose_background(job: Job) -> Decision[str]:
    """Whether checkpoints are written while training goes on."""
    asked = job.checkpoint.background
    if asked == "off":
        return Decision("off", "checkpoint.background = off: training waits for the disk")
    return Decision(
        "on",
        f"checkpoint.background = {asked}: training waits for a copy to host memory only; where "
        "there is none free for it, for the disk",
    )
