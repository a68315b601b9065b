"""What is said about steps that changed nothing because something was not finite."""

from __future__ import annotations

from phalanx.engine.data.order import ids_at
from phalanx.errors import Finding
from phalanx.job.schema import Job
from phalanx.planner.schema.plan import Plan
from phalanx.run.event_kinds import Skipped

_NAMED = 4096  # samples of an event
_SHOWN = 8  # samples of a Finding


def skip_finding(skipped: Skipped, loss: float) -> Finding:
    """`loss`: of the step that was logged after it, or itself."""
    ids = skipped.ids
    shown = ", ".join(map(str, ids[:_SHOWN])) + (", ..." if len(ids) > _SHOWN else "")
    return Finding(
        slug="step-skipped",
        what=f"step {skipped.step} was skipped on all ranks: the loss or a gradient was not finite",
        why="an overflow, a division by zero, a bad sample or a learning rate that is too "
        f"large; samples of the step: {shown} (all in its event); the loss logged next is "
        f"{loss:g}",
        fix="nothing if it stays rare: weights, optimizer and averages are as before it; else "
        "look at these samples, try a tenth of the rate (`--lr`), clip "
        "(`optimizer.clip_norm=1.0`), or precision=fp32",
        severity="warning",
    )


def describe_skip(job: Job, plan: Plan, step: int, *, in_a_row: int, total: int) -> Skipped:
    """The step that was counted as number `step`, from 1; the samples are those of all ranks."""
    batch, size = plan.micro_batches, plan.batch.num_samples.value
    slots = batch.slots_of(step - 1)
    epoch = (step - 1) // batch.steps_per_epoch
    ids = ids_at(job.seed, epoch, slots[0].start, slots[-1].stop, size).tolist()
    return Skipped(step=step, epoch=epoch, ids=ids[:_NAMED], in_a_row=in_a_row, total=total)


def too_many_skips(step: int, in_a_row: int, limit: int) -> Finding:
    """Why the run ends."""
    return Finding(
        slug="steps-not-finite",
        what=f"{in_a_row} steps in a row were skipped, up to step {step}: the loss or gradients "
        "were not finite",
        why=f"stop_after_bad_steps = {limit}; the weights are those before the first of them and "
        "are saved",
        fix="a tenth of the rate (`--lr`), `optimizer.clip_norm=1.0` or precision=fp32, in a new "
        "run that starts from the last good weights with `init_from`",
    )
