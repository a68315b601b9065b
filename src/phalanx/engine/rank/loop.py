"""The loop: the only place that says what happens in which order.

for step in feed:                     fetched, weighed and agreed on one step ahead
    if must_save: save                a wish of time, agreed by all ranks
    if must_stop: save, end           a signal or a limit, agreed by all ranks
    run the step                      -> "step" every logging.every steps, "skipped"
    if due or last: evaluate          -> "evaluate", "samples", "media"; best and patience
    if due or best or last: save      copied here, written beside training (saving.py)
    if out of patience: end
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from phalanx.engine.data.step_feed import StepInput
from phalanx.engine.fast.cuda_graph import GraphedStep
from phalanx.engine.fast.validation import say_dropped, take_graph
from phalanx.engine.process.garbage import Garbage
from phalanx.engine.process.heartbeat import HEART
from phalanx.engine.process.telemetry import SpeedMeter, memory_bytes, memory_trouble
from phalanx.engine.strategies.base import Strategy
from phalanx.engine.training.evaluation import Evaluation, Evaluator
from phalanx.engine.training.loss_weights import divide, weight_of
from phalanx.engine.training.skipped_step_findings import (
    describe_skip,
    skip_finding,
    too_many_skips,
)
from phalanx.engine.training.step import StepResult, TrainStep
from phalanx.errors import ExitCode, Finding, UserError
from phalanx.job.schema import Job
from phalanx.planner.schema.plan import Plan
from phalanx.recipe.showing import Media
from phalanx.run.event_kinds import (
    Body,
    Evaluate,
    FindingMade,
    MediaWritten,
    ModelSample,
    Samples,
    Step,
)
from phalanx.run.heartbeat import Part


@dataclass
class Counters:
    """What the loop remembers from one step to the next; saved with every checkpoint."""

    step: int = 0
    best: float | None = None
    best_step: int | None = None
    evaluated_step: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    """What was found there: `phalanx evaluate` shows it beside what it finds."""
    evaluations_without_best: int = 0
    top: list[tuple[float, int]] = field(default_factory=list)
    """Metric and step of the best evaluations, the best first: `checkpoint.keep_best` of them."""
    skipped: int = 0
    """Steps that changed nothing, because something was not finite."""

    def __post_init__(self) -> None:
        if not self.top and self.best is not None and self.best_step is not None:
            self.top = [(self.best, self.best_step)]  # an older version left it out


@dataclass
class Loop:
    """The parts the loop is made of."""

    job: Job
    plan: Plan
    strategy: Strategy
    train_step: TrainStep | GraphedStep
    evaluator: Evaluator | None
    terms: list[str]
    """Names of the loss terms, for a rank whose step had no micro-batch; empty on one rank."""
    save: Callable[[Counters, bool], None]
    """Keep a checkpoint: step and counters, whether it is the best."""
    loss_scale: Callable[[], float | None]
    is_worth_saving: Callable[[], bool] = lambda: True
    """Whether what is due by the number of steps is saved now; every rank asks."""
    watch: Callable[[], Iterable[Body]] = tuple
    """Looks, where a step is logged, whether the fast path still holds; every rank asks."""
    keep_media: Callable[[int, Media], str | None] | None = None
    """Writes a picture of a step and returns where, or None if that failed. None on a rank that
    writes none."""
    counters: Counters = field(default_factory=Counters)
    ended_because: str = "finished"
    _saved_step: int | None = None
    _read_step: int = 0
    _in_a_row: int = 0
    _warned: bool = False
    _has_said_charts: bool = False

    def run(self, feed: Iterable[StepInput]) -> Iterator[Body]:
        """Train, and yield what happens."""
        batch, total = self.plan.micro_batches, self.plan.batch.total_steps.value
        self._saved_step = self._read_step = self.counters.step
        if self.job.evaluate.at_start and self.counters.step == 0 and self.evaluator is not None:
            # Only looked at: what is best is chosen among checkpoints, and there is none yet.
            yield from self._say_evaluation(self.evaluator.run(), is_best=False)
        meter = SpeedMeter(batch.consumed_after(self.counters.step))
        step_done = HEART.step_done
        with Garbage() as garbage:
            for step in feed:
                if step.must_save:
                    with meter.paused():
                        self._save(is_best=False)
                if step.must_stop:
                    self.ended_because = "stopped"
                    self._save(is_best=False)
                    return
                meter.wait(step.waited_s)
                result = self.train_step.run(step)
                self.counters.step = done = step.share.step + 1
                step_done(done)
                yield from say_dropped(take_graph(self.train_step, self.plan))
                is_last = done == total
                if done % self.job.logging.every == 0 or is_last:
                    yield from self._log(result, step.share.consumed, meter)
                is_evaluated = is_last or _due(self.plan.evaluation.evaluate_every, done)
                is_saved = is_last or (
                    _due(self.plan.saving.save_every_steps, done) and self.is_worth_saving()
                )
                if is_evaluated or is_saved:
                    with meter.paused():
                        yield from self._pause(is_evaluated, is_saved)
                        garbage.collect()
                if self._is_out_of_patience():
                    self.ended_because = (
                        f"no better {self.plan.evaluation.metric.value} in "
                        f"{self.job.evaluate.early_stopping} evaluations"
                    )
                    self._save(is_best=False)
                    return
                garbage.after_step()

    def _pause(self, is_evaluated: bool, is_saved: bool) -> Iterator[Body]:
        """What is due between two steps."""
        is_best = is_among_best = False
        if self.evaluator is not None and is_evaluated:
            evaluation = self.evaluator.run()
            is_best, is_among_best = self._judge(evaluation)
            yield from self._say_evaluation(evaluation, is_best=is_best)
            if is_best or self.counters.step == self.plan.batch.total_steps.value:
                yield from self._say_charts(evaluation)
        if is_saved or is_among_best:
            self._save(is_best=is_best, is_among_best=is_among_best)

    def _is_out_of_patience(self) -> bool:
        patience = self.job.evaluate.early_stopping
        return patience is not None and self.counters.evaluations_without_best >= patience

    def _log(self, result: StepResult, consumed: int, meter: SpeedMeter) -> Iterator[Body]:
        HEART.at(Part.READ)
        terms = self._read_losses(result)
        HEART.at(Part.AGREE)
        loss = sum(terms.values())
        norm = result.grad_norm
        device = self.strategy.process.device
        retries, faults = memory_trouble(device)
        yield Step(
            step=self.counters.step,
            epoch=round(self.plan.micro_batches.epoch_of(self.counters.step), 6),
            samples=consumed,
            loss=loss,
            terms=terms,
            lr=result.lr,
            grad_norm=float(norm) if norm is not None else None,
            samples_per_s=round(meter.read(consumed), 3),
            data_wait=round(meter.data_wait or 0.0, 4),
            memory_bytes=memory_bytes(device),
            alloc_retries=retries,
            major_faults=faults,
            loss_scale=self.loss_scale(),
        )
        yield from self.watch()
        yield from self._say_skipped(loss)
        if not math.isfinite(loss) and not self._warned:
            self._warned = True
            yield FindingMade(finding=_not_finite(loss, self.counters.step))

    def _read_losses(self, result: StepResult) -> dict[str, float]:
        """Each term over the global batch: this synchronises the device."""
        dtype = torch.float64 if self.plan.numerics.precision.value == "fp64" else torch.float32
        zero = torch.zeros((), dtype=dtype, device=self.strategy.process.device)
        names = self.terms or list(result.sums)
        sums = torch.stack([result.sums.get(name, zero).to(dtype) for name in names])
        if not result.is_reduced:
            self.strategy.process.sum_(sums)
        values = sums.tolist()
        if result.weights is None:
            assert result.late_weight is not None
            late = float(result.late_weight)
            return {name: divide(value, late) for name, value in zip(names, values, strict=True)}
        return {
            name: divide(value, weight_of(result.weights, name))
            for name, value in zip(names, values, strict=True)
        }

    def _say_skipped(self, loss: float) -> Iterator[Body]:
        """Steps since the last log that changed nothing; ends the run after too many in a row. The
        device was waited for already."""
        flags = self.strategy.skips.read(self.counters.step - self._read_step)
        self._read_step = self.counters.step
        limit, most = self.job.stop_after_bad_steps, 0
        for step, is_skipped in enumerate(flags, start=self.counters.step - len(flags) + 1):
            self._in_a_row = self._in_a_row + 1 if is_skipped else 0
            most = max(most, self._in_a_row)
            if is_skipped:
                self.counters.skipped += 1
                skipped = describe_skip(
                    self.job,
                    self.plan,
                    step,
                    in_a_row=self._in_a_row,
                    total=self.counters.skipped,
                )
                yield skipped
                # fp16 looks for the largest loss scale that does not overflow: nothing is wrong.
                if not self._warned and self.loss_scale() is None:
                    self._warned = True
                    yield FindingMade(finding=skip_finding(skipped, loss))
        if limit is not None and most >= limit:
            self._save(is_best=False)
            raise UserError(
                too_many_skips(self.counters.step, most, limit), exit_code=ExitCode.FAILED
            )

    def _judge(self, evaluation: Evaluation) -> tuple[bool, bool]:
        """Whether this evaluation is the best so far, and whether it is among those to keep; counts
        how long ago the best was."""
        counters, name = self.counters, self.plan.evaluation.metric.value
        value = evaluation.metrics.get(name)
        counters.evaluated_step, counters.metrics = counters.step, dict(evaluation.metrics)
        if value is None or not math.isfinite(value):
            counters.evaluations_without_best += 1
            return False, False
        sign = 1 if self.plan.evaluation.metric_mode.value == "max" else -1
        ranked = sorted([*counters.top, (value, counters.step)], key=lambda e: (-sign * e[0], e[1]))
        counters.top = ranked[: self.job.checkpoint.keep_best]
        is_among_best = (value, counters.step) in counters.top
        if counters.best is not None and sign * value <= sign * counters.best:
            counters.evaluations_without_best += 1
            return False, is_among_best
        counters.best, counters.best_step = value, counters.step
        counters.evaluations_without_best = 0
        return True, True

    def _say_evaluation(self, evaluation: Evaluation, *, is_best: bool) -> Iterator[Body]:
        yield Evaluate(
            step=self.counters.step,
            epoch=round(self.plan.micro_batches.epoch_of(self.counters.step), 6),
            metrics=evaluation.metrics,
            samples=evaluation.samples,
            is_best=is_best,
            seconds=round(evaluation.seconds, 6),
        )
        if evaluation.made:
            made = [ModelSample(*map(str, sample)) for sample in evaluation.made]
            yield Samples(step=self.counters.step, samples=made)
        yield from self._say_media(evaluation.media)

    def _say_charts(self, evaluation: Evaluation) -> Iterator[Body]:
        """The ranks that draw nothing wait for the first one in the next step."""
        if self.keep_media is None:
            return
        assert self.evaluator is not None
        media, findings = self.evaluator.charts(evaluation)
        yield from self._say_media(media)
        for finding in findings if not self._has_said_charts else ():
            self._has_said_charts = True
            yield FindingMade(finding=finding)

    def _say_media(self, media: Iterable[Media]) -> Iterator[Body]:
        step, keep = self.counters.step, self.keep_media
        if keep is None:
            return
        for one in media:
            if (file := keep(step, one)) is not None:
                yield MediaWritten(
                    step=step, name=one.name, file=file, caption=str(one.caption or "")
                )

    def _save(self, *, is_best: bool, is_among_best: bool = False) -> None:
        if self._saved_step == self.counters.step and not (is_best or is_among_best):
            return
        self.save(self.counters, is_best)
        self._saved_step = self.counters.step


def _due(every: Any, done: int) -> bool:
    return every.value is not None and done % every.value == 0


def _not_finite(loss: float, step: int) -> Finding:
    return Finding(
        slug="loss-not-finite",
        what=f"the loss is {loss} at step {step}",
        why="an overflow, a division by zero or a learning rate that is too large",
        fix="try a tenth of the rate (`--lr`), clip (`optimizer.clip_norm=1.0`), or precision=fp32",
        severity="warning",
    )
