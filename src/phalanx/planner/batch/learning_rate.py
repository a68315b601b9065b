"""How the learning rate follows the batch, with its arithmetic."""

from __future__ import annotations

from math import sqrt

from phalanx.errors import Finding
from phalanx.job.schema import Job
from phalanx.job.source.value_types import Interval
from phalanx.planner.schema.plan import Decision

# Below this total batch the unscaled rate is the first thing to try; Goyal et al. 2017 ("Accurate,
# Large Minibatch SGD") take 256 as the reference batch of the linear rule.
SCALE_FROM = 256


MOST_ADAMW = 0.02  # twenty times torch's default; published recipes stay below 0.005


def scale_lr(job: Job, global_batch_size: int) -> Decision[float]:
    """The peak learning rate for the global batch."""
    optimizer = job.optimizer
    lr, rule = optimizer.lr, optimizer.lr_rule
    reference, origin = _reference_batch(job, global_batch_size)
    if rule == "none":
        return Decision(lr, f"lr_rule = none: {lr:g} as stated")
    if reference == global_batch_size:
        return Decision(lr, f"stated for a batch of {reference} ({origin}), which this is")
    if rule == "auto":
        if global_batch_size < SCALE_FROM:
            return Decision(
                lr,
                f"not scaled: a total batch of {global_batch_size} is under {SCALE_FROM}, where "
                f"the original rate is tried first (lr_rule = linear would give "
                f"{lr:g} x {global_batch_size}/{reference} = "
                f"{lr * global_batch_size / reference:g})",
            )
        rule = "linear"
    ratio = global_batch_size / reference
    if rule == "sqrt":
        scaled = lr * sqrt(ratio)
        text = f"{lr:g} x sqrt({global_batch_size}/{reference}) = {scaled:g}"
    else:
        scaled = lr * ratio
        text = f"{lr:g} x {global_batch_size}/{reference} = {scaled:g}"
    return Decision(scaled, f"{text} ({rule} rule; lr_batch: {origin})")


def lr_findings(job: Job, lr: Decision[float]) -> list[Finding]:
    """A rate of SGD's size under AdamW, whose steps are about as large as the rate whatever the
    gradients are."""
    if job.optimizer.name != "adamw" or lr.value <= MOST_ADAMW:
        return []
    return [
        Finding(
            slug="adamw-rate",
            what=f"a learning rate of {lr.value:g} is large for AdamW, which changes every weight "
            "by about as much in each step",
            why=f"{lr.reason}; rates above {MOST_ADAMW:g} are SGD's",
            fix=f"--lr {job.optimizer.lr / 10:g}, or optimizer.name=sgd",
            severity="warning",
        )
    ]


def _reference_batch(job: Job, global_batch_size: int) -> tuple[int, str]:
    if job.optimizer.lr_batch is not None:
        return job.optimizer.lr_batch, f"optimizer.lr_batch = {job.optimizer.lr_batch}"
    if job.batch_per_gpu is not None:
        accumulation = job.gradient_accumulation or 1
        one = job.batch_per_gpu * accumulation
        return one, f"one GPU's share, {job.batch_per_gpu} x {accumulation}"
    return global_batch_size, "the job's own batch"


def choose_warmup(job: Job, *, lr: float, total_steps: int, steps_per_epoch: int) -> Decision[int]:
    """Steps of linear rise."""
    warmup = job.schedule.warmup
    if isinstance(warmup, Interval):
        steps = in_steps(warmup, total_steps=total_steps, steps_per_epoch=steps_per_epoch)
        return Decision(min(steps, total_steps), f"schedule.warmup = {warmup}")
    is_raised = lr > job.optimizer.lr
    share = 0.10 if is_raised else 0.05
    steps = round(share * total_steps)
    why = "a raised rate wants a longer rise" if is_raised else "a short rise"
    return Decision(steps, f"{why}: {share:.0%} of {total_steps} steps")


def in_steps(interval: Interval, *, total_steps: int, steps_per_epoch: int) -> int:
    """An interval as optimizer steps; minutes have none."""
    if interval.unit == "epochs":
        return max(1, round(interval.count * steps_per_epoch))
    if interval.unit == "percent":
        return round(interval.count / 100 * total_steps)
    assert interval.unit == "steps", f"{interval} has no count of steps"
    return int(interval.count)
