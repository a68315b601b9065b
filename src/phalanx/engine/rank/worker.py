"""One rank from start to end: reads the frozen plan, trains, writes its events and its outcome."""

from __future__ import annotations

import json
import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from phalanx.codec import from_json
from phalanx.engine.checkpoint.recipe_files import export_final
from phalanx.engine.data.fingerprint import check_remembered
from phalanx.engine.data.order import check_size
from phalanx.engine.fast.validation import say_dropped
from phalanx.engine.process.failure import describe_failure
from phalanx.engine.process.group import Process, StopRequest, join
from phalanx.engine.process.heartbeat import HEART, notice_compiling
from phalanx.engine.process.out_of_memory import during
from phalanx.engine.process.stacks import answer_with_collectives
from phalanx.engine.rank.assembly import Assembly
from phalanx.engine.rank.feed import make_wishes
from phalanx.engine.rank.loop import Counters, Loop
from phalanx.engine.rank.saving import Saving
from phalanx.engine.rank.start_up import begin_cuda, uncollected
from phalanx.engine.training.ema import WeightAverage
from phalanx.engine.training.evaluation import Evaluator
from phalanx.engine.training.step import TrainStep
from phalanx.errors import ExitCode, Finding
from phalanx.job.load import load_job
from phalanx.job.schema import Job
from phalanx.planner.schema.plan import Plan
from phalanx.recipe.interface import Recipe
from phalanx.recipe.loading import load_recipe
from phalanx.recipe.showing import Media
from phalanx.run.attempt import RunTakenError
from phalanx.run.checkpoints import SavedCheckpoint
from phalanx.run.directory import RunDirectory
from phalanx.run.event_kinds import Compared, FindingMade, Outcome, Preparing, RankStarted
from phalanx.run.events import EventWriter
from phalanx.run.heartbeat import Phase
from phalanx.run.media import media_not_written, write_media
from phalanx.run.purpose import TRAIN, Evaluate, Measure, Purpose, Record, read_purpose


def run_worker(run_path: Path, *, attempt: int = 0, handle_signals: bool = True) -> bool:
    """Train as one rank; returns whether it ended in order. Never raises."""
    run = RunDirectory(run_path)
    rank = int(os.environ.get("RANK", "0"))
    events = EventWriter(run.events, f"rank-{rank}", attempt=attempt)
    stop = StopRequest()
    listening: AbstractContextManager[Any] = stop.listening() if handle_signals else nullcontext()
    device = "cpu"
    failure: Outcome | None = None
    HEART.begin(Phase.START, 0)
    try:
        plan = Plan.from_json(json.loads(run.plan_file.read_text(encoding="utf-8")))
        job, purpose = load_job(run.job_file).job, read_purpose(run)
        begin_cuda(plan, int(os.environ.get("LOCAL_RANK", "0")))
        with listening:
            with uncollected():
                recipe = load_recipe(job.recipe, job.options)
            with join(plan) as process:
                device = str(process.device)
                try:
                    outcome = _work(run, job, plan, purpose, process, recipe, events, stop)
                except RunTakenError:
                    raise
                except Exception as error:
                    # Recorded before this rank leaves its peers: they fail then, and all are ended.
                    failure = describe_failure(error, rank=rank, device=device, run=run)
                    events.write(failure)
                    raise
            # After the ranks have parted: nobody waits for it.
            HEART.begin(Phase.EXPORT)
            if rank == 0 and outcome.status == "finished" and purpose == TRAIN:
                events.check()
                export_final(run, job, events)
            HEART.begin(Phase.OVER)
    except RunTakenError:  # not a word: the events are another attempt's
        return False
    except Exception as error:
        if failure is None:
            failure = describe_failure(error, rank=rank, device=device, run=run)
            events.write(failure)
        outcome = failure
    else:
        events.write(outcome)
    events.close()
    return outcome.status in ("finished", "stopped")


def _work(
    run: RunDirectory,
    job: Job,
    plan: Plan,
    purpose: Purpose,
    process: Process,
    recipe: Recipe,
    events: EventWriter,
    stop: StopRequest,
) -> Outcome:
    if isinstance(purpose, Evaluate):
        from phalanx.engine.rank.evaluate import run_evaluation

        return run_evaluation(run, job, plan, process, recipe, events, Path(purpose.file))
    if isinstance(purpose, Measure):
        from phalanx.engine.rank.bench import run_bench

        return run_bench(job, plan, process, events, stop, purpose.micro_batches)
    recorded = purpose if isinstance(purpose, Record) else None
    worker = Worker(run, job, plan, process, recipe, events, stop, recorded=recorded)
    if recorded is None or recorded.has_dropout:
        return worker.train()
    from phalanx.engine.model.no_dropout import dropout_disabled

    with dropout_disabled():
        return worker.train()


class Worker:
    """A rank that trains."""

    def __init__(
        self,
        run: RunDirectory,
        job: Job,
        plan: Plan,
        process: Process,
        recipe: Recipe,
        events: EventWriter,
        stop: StopRequest,
        *,
        recorded: Record | None = None,
    ) -> None:
        """`recorded`: write down what is computed, and save nothing."""
        self.recorded = recorded
        self.run = run
        self.job = job
        self.plan = plan
        self.process = process
        self.events = events
        self.stop = stop
        self.recipe = recipe

    def train(self) -> Outcome:
        """Train to the end, or to a stop; returns the outcome."""
        plan, job, process = self.plan, self.job, self.process
        data = self.recipe.data("train")
        if plan.loading.is_from_memory and process.is_first:
            check_remembered(plan, data, self.recipe.data("test"))
        check_size(len(data), plan.batch.num_samples.value, process.rank)
        with uncollected():
            parts = Assembly(
                job, plan, process, recipe=self.recipe, data=data, say=self._say_preparing
            )
        if process.is_first:
            for finding in parts.findings:
                self.events.write(FindingMade(finding=finding))
            for event in say_dropped(parts.dropped):
                self.events.write(event)
            if parts.fast_path.is_compared and not parts.dropped:
                self.events.write(Compared(rungs=parts.fast_path.rungs()))
        # After settling: the discarded passes must not see (or touch) what is loaded here.
        saving = Saving(
            self.run,
            job,
            plan,
            process,
            self.events,
            parts.strategy,
            parts.pretrained,
            self.recipe,
        )
        saved = saving.load()
        counters = from_json(Counters, saved.state) if saved is not None else Counters()
        parts.strategy.resume()
        if self.recorded is not None:
            from phalanx.engine.training.recording import (
                Recorder,
            )  # nobody else waits for its imports

            assert isinstance(parts.train_step, TrainStep), "a recorded run has no graphs"
            parts.train_step.recorder = Recorder(
                self.run.recordings, parts.strategy, has_dropout=self.recorded.has_dropout
            )
        evaluator = self._make_evaluator(parts, saving.average)
        wishes = make_wishes(
            job,
            plan,
            self.stop,
            is_first=process.is_first,
            start=counters.step,
            cadence=saving.cadence,
        )
        # All loader processes are forked here, before any step.
        with process.resting() if plan.loading.workers.value > 0 else nullcontext():
            if evaluator is not None and plan.loading.workers.value > 0:
                evaluator.start()
            feed = parts.make_feed(counters.step, wishes)
        self._say_start(counters, saved)
        loop = Loop(
            job=job,
            plan=plan,
            strategy=parts.strategy,
            train_step=parts.train_step,
            evaluator=evaluator,
            terms=parts.terms,
            # A recorded run is looked at and thrown away.
            save=(lambda *_: None) if self.recorded else during("save")(saving.save),
            is_worth_saving=saving.is_due,
            loss_scale=lambda: parts.precision.loss_scale,
            watch=lambda: say_dropped(parts.fast_path.watch()),
            # A recorded run is looked at and thrown away.
            keep_media=self._keep_media if process.is_first and not self.recorded else None,
            counters=counters,
        )
        HEART.begin(Phase.START, counters.step)
        if process.world > 1:
            answer_with_collectives(self.run, process.rank)
        if plan.execution.compile.value != "off":
            notice_compiling()
        try:
            with during("step", lambda: counters.step):
                for event in loop.run(feed):
                    if process.is_first:
                        self.events.write(event)
        finally:
            with during("save"):
                saving.close()  # a failure loses nothing that was copied
        with during("save"):
            lost = saving.finish(counters.step)
        return self._outcome(loop, lost)

    def _make_evaluator(self, parts: Assembly, average: WeightAverage | None) -> Evaluator | None:
        if self.plan.batch.num_test_samples.value == 0:
            return None
        return Evaluator(
            self.recipe,
            parts.test_data(),
            plan=self.plan,
            strategy=parts.strategy,
            prefetch=self.job.loader.prefetch,
            seed=self.job.seed,
            weights=average.swapped_in if average and self.job.ema.evaluate else nullcontext,
        )

    def _keep_media(self, step: int, media: Media) -> str | None:
        """A disk that is full costs pictures and no run."""
        name, suffix, content, _ = media
        self.events.check()
        try:
            return write_media(self.run, step=step, name=name, suffix=suffix, content=content)
        except OSError as error:
            self.events.write(FindingMade(finding=media_not_written(self.run, name, error)))
            return None

    def _say_preparing(self, what: str) -> None:
        if self.process.is_first:
            self.events.write(Preparing(what=what))

    def _say_start(self, counters: Counters, saved: SavedCheckpoint | None) -> None:
        self.events.write(
            RankStarted(
                rank=self.process.rank,
                world=self.process.world,
                pid=os.getpid(),
                device=self.process.describe(),
                backend=self.process.backend,
                step=counters.step,
                resumed_from=str(saved.path) if saved else None,
            )
        )

    def _outcome(self, loop: Loop, lost: list[Finding]) -> Outcome:
        is_stopped = loop.ended_because == "stopped"
        if lost and self.process.is_first:
            return Outcome(
                status="failed",
                step=loop.counters.step,
                phase="save",
                reason=lost[0].what,
                findings=lost,
                exit_code=int(ExitCode.FAILED),
            )
        return Outcome(
            status="stopped" if is_stopped else "finished",
            step=loop.counters.step,
            reason=loop.ended_because,
            findings=[],
            exit_code=int(ExitCode.STOPPED if is_stopped else ExitCode.OK),
        )
