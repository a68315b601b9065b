"""One rank from start to end: reads the frozen plan, trains, writes its events and its outcome."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from phalanx.engine.blocks import find_blocks
from phalanx.engine.checkpoint import load_initial_weights
from phalanx.engine.data import Feed, Fetcher, Loader, MicroBatch, Request, move, name_samples
from phalanx.engine.ema import WeightAverage
from phalanx.engine.evaluate import Evaluator
from phalanx.engine.failure import describe_failure
from phalanx.engine.loop import Counters, Loop
from phalanx.engine.memory import during
from phalanx.engine.optimize import Schedule, make_optimizer
from phalanx.engine.order import INIT, check_size
from phalanx.engine.precision import Precision
from phalanx.engine.process import Process, StopRequest, join
from phalanx.engine.recompute import recompute_in_backward
from phalanx.engine.saving import Saving
from phalanx.engine.step import TrainStep
from phalanx.engine.strategies.base import Strategy
from phalanx.engine.strategies.ddp import Ddp
from phalanx.engine.strategies.exact import Exact
from phalanx.engine.strategies.single import Single
from phalanx.engine.strategies.together import Together
from phalanx.engine.sync_batchnorm import BatchStatistics, synchronise_norms
from phalanx.errors import ExitCode
from phalanx.job.load import load_job
from phalanx.job.schema import Job
from phalanx.planner.batch import StepShare
from phalanx.planner.deepspeed import deepspeed_settings
from phalanx.planner.learning_rate import in_steps
from phalanx.planner.plan import Plan
from phalanx.recipe.interface import Recipe
from phalanx.recipe.keys import make_key
from phalanx.recipe.load import load_recipe
from phalanx.run.checkpoints import SavedCheckpoint
from phalanx.run.directory import RunDirectory
from phalanx.run.events import EventWriter


def run_worker(run_path: Path, *, attempt: int = 0, handle_signals: bool = True) -> bool:
    """Train as one rank; returns whether it ended in order. Never raises."""
    run = RunDirectory(run_path)
    rank = int(os.environ.get("RANK", "0"))
    events = EventWriter(run.events, f"rank-{rank}", attempt=attempt)
    stop = StopRequest()
    listening: AbstractContextManager[Any] = stop.listening() if handle_signals else nullcontext()
    device = "cpu"
    failure: dict[str, Any] | None = None
    try:
        plan = Plan.from_json(json.loads(run.plan_file.read_text(encoding="utf-8")))
        job = load_job(run.job_file).job
        with listening, join(plan) as process:
            device = str(process.device)
            try:
                outcome = Worker(run, job, plan, process, events, stop).train()
            except Exception as error:
                # Recorded before this rank leaves its peers: they fail then, and all are ended.
                failure = describe_failure(error, rank=rank, device=device, run=run)
                events.write("outcome", **failure)
                raise
    except Exception as error:
        if failure is None:
            failure = describe_failure(error, rank=rank, device=device, run=run)
            events.write("outcome", **failure)
        outcome = failure
    else:
        events.write("outcome", **outcome)
    events.close()
    return outcome["status"] in ("finished", "stopped")


class Worker:
    """The parts of one rank, put together in the order that matters."""

    def __init__(
        self,
        run: RunDirectory,
        job: Job,
        plan: Plan,
        process: Process,
        events: EventWriter,
        stop: StopRequest,
    ) -> None:
        self.run = run
        self.job = job
        self.plan = plan
        self.process = process
        self.events = events
        self.stop = stop
        self.recipe: Recipe = load_recipe(job.recipe, job.options)
        self.precision = Precision(plan.precision.value, process.device)
        self.precision.configure()
        self.statistics: BatchStatistics | None = None
        """Where BatchNorm is synchronised over the ranks."""

    def train(self) -> dict[str, Any]:
        """Train to the end, or to a stop; returns the outcome."""
        plan, job = self.plan, self.job
        data = self.recipe.data("train")
        check_size(len(data), plan.num_samples.value, self.process.rank)
        strategy = self._make_strategy()
        if self.statistics is not None:
            assert isinstance(strategy, Together)  # one rank has nothing to synchronise
            strategy.synchronise(self.statistics)
        if job.init_from is not None:
            load_initial_weights(strategy, Path(job.init_from))
        optimizer = make_optimizer(self.recipe, strategy.model, job.optimizer, plan.lr.value)
        strategy.adopt(optimizer, self.precision, job.optimizer.clip_norm)
        fetcher = Fetcher(self.recipe, data, seed=job.seed, is_shuffled=True)
        # The probe is always the first step's, so that a resumed run settles like an unbroken one.
        probe = self._probe(fetcher)
        train_step = TrainStep(
            strategy=strategy,
            schedule=Schedule(
                job.schedule,
                peak_lr=plan.lr.value,
                warmup_steps=plan.warmup_steps.value,
                total_steps=plan.total_steps.value,
            ),
            seed=job.seed,
            filler=probe,
        )
        with during("settle"):
            terms = self._settle(strategy, train_step, probe)
        # After settling: the discarded passes must not see (or touch) what is loaded here.
        saving = Saving(self.run, job, plan, self.process, self.events, strategy)
        saved = saving.load()
        counters = Counters.from_json(saved.state) if saved is not None else Counters()
        strategy.resume()
        if plan.is_recorded:
            from phalanx.engine.record import Recorder  # nobody else waits for its imports

            train_step.recorder = Recorder(self.run.recordings, strategy)
        evaluator = self._make_evaluator(strategy, saving.average)
        # All loader processes are forked here, before any step.
        with self.process.resting() if plan.workers.value > 0 else nullcontext():
            if evaluator is not None and plan.workers.value > 0:
                evaluator.start()
            feed = self._make_feed(fetcher, counters.step, probe)
        self._say_start(counters, saved)
        loop = Loop(
            job=job,
            plan=plan,
            strategy=strategy,
            train_step=train_step,
            evaluator=evaluator,
            terms=terms,
            # A recorded run is looked at and thrown away.
            save=(lambda *_: {}) if plan.is_recorded else during("save")(saving.save),
            loss_scale=lambda: self.precision.loss_scale,
            counters=counters,
        )
        with during("step", lambda: counters.step):
            for kind, facts in loop.run(feed):
                if self.process.is_first:
                    self.events.write(kind, **facts)
        return self._outcome(loop)

    def _make_strategy(self) -> Strategy:
        # Built on the CPU from one seed: the same weights on every rank, device and rank count.
        torch.manual_seed(make_key(self.job.seed, INIT) & (1 << 62) - 1)
        if self.plan.strategy.value == "fsdp":
            from phalanx.engine.strategies.fsdp import make_fsdp  # half a second of imports

            return make_fsdp(
                self.recipe,
                self.process,
                self.precision,
                self.job.fsdp,
                shard_ranks=self.plan.shard_ranks.value,
                build=self.plan.build.value,
                adapt=self._adapt,
            )
        model = self.precision.convert(self.recipe.model())
        if self.plan.strategy.value == "deepspeed":
            from phalanx.engine.strategies.deepspeed import Deepspeed

            self._adapt(model)
            settings = deepspeed_settings(self.job, self.plan)
            return Deepspeed(self.recipe, model, self.process, settings)
        model = model.to(self.process.device)
        self._adapt(model)
        if self.plan.determinism.value == "exact":
            return Exact(self.recipe, model, self.process)
        if self.plan.strategy.value == "ddp":
            return Ddp(self.recipe, model, self.process, self.job.ddp)
        return Single(self.recipe, model, self.process)

    def _adapt(self, model: torch.nn.Module) -> None:
        """Change how the model runs, before a strategy wraps or shards it."""
        if self.plan.sync_batchnorm.value:
            self.statistics = synchronise_norms(model, self.process)
        if self.plan.activation_checkpointing.value:
            recompute_in_backward(find_blocks(self.recipe, model))

    def _probe(self, fetcher: Fetcher) -> MicroBatch:
        slots = self.plan.batch.slots_of(0)
        request = Request(0, slots[self.process.rank % len(slots)], is_training=True)
        fetched: MicroBatch = move(fetcher[request], self.process.device)
        return fetched

    def _settle(self, strategy: Strategy, train_step: TrainStep, probe: MicroBatch) -> list[str]:
        terms: list[str] = []

        def run_backward(micro_batch: MicroBatch) -> None:
            terms[:] = train_step.discard(micro_batch)

        for finding in strategy.settle(probe, run_backward):
            if self.process.is_first:
                self.events.write("finding", finding=finding.to_json())
        return terms

    def _make_evaluator(
        self, strategy: Strategy, average: WeightAverage | None
    ) -> Evaluator | None:
        if self.plan.num_test_samples.value == 0:
            return None
        return Evaluator(
            self.recipe,
            self.recipe.data("test"),
            plan=self.plan,
            strategy=strategy,
            prefetch=self.job.loader.prefetch,
            seed=self.job.seed,
            weights=average.swapped_in if average and self.job.ema.evaluate else nullcontext,
        )

    def _make_feed(self, fetcher: Fetcher, start: int, probe: MicroBatch) -> Feed:
        rank, world = self.process.rank, self.process.world
        batch, total = self.plan.batch, self.plan.total_steps.value

        def shares() -> Iterator[StepShare]:
            return (batch.share_of(step, rank, world) for step in range(start, total))

        requests = (
            Request(share.epoch, slot, is_training=True)
            for share in shares()
            for slot in share.slots
        )
        loader = Loader(
            fetcher,
            name_samples(requests, seed=self.job.seed, size=self.plan.num_samples.value),
            workers=self.plan.workers.value,
            prefetch=self.job.loader.prefetch,
            pin=self.plan.pin_memory.value,
        )
        return Feed(
            shares(),
            iter(loader),
            terms=None if probe.weights is None else sorted(probe.weights),
            device=self.process.device,
            reduce=self.process.reduce_control,
            wishes=self._wishes(start),
        )

    def _wishes(self, start: int) -> Callable[[StepShare], tuple[bool, bool]]:
        """What this rank wants before a step: to stop, to save. Only the first rank has a clock."""
        limit = self.job.stop_after
        begun = saved_at = time.monotonic()
        last_step = None
        if limit is not None and limit.unit != "minutes":
            last_step = start + in_steps(
                limit,
                total_steps=self.plan.total_steps.value,
                steps_per_epoch=self.plan.steps_per_epoch.value,
            )

        def wishes(share: StepShare) -> tuple[bool, bool]:
            nonlocal saved_at
            stop = self.stop.is_set or (last_step is not None and share.step >= last_step)
            if not self.process.is_first:
                return stop, False
            now = time.monotonic()
            if limit is not None and limit.unit == "minutes" and now - begun > limit.count * 60:
                stop = True
            save_every = self.plan.save_every_s.value
            save = save_every is not None and now - saved_at > save_every
            if save:
                saved_at = now
            return stop, save

        return wishes

    def _say_start(self, counters: Counters, saved: SavedCheckpoint | None) -> None:
        self.events.write(
            "start",
            rank=self.process.rank,
            world=self.process.world,
            pid=os.getpid(),
            device=self.process.describe(),
            backend=self.process.backend,
            step=counters.step,
            resumed_from=str(saved.path) if saved else None,
        )

    def _outcome(self, loop: Loop) -> dict[str, Any]:
        is_stopped = loop.ended_because == "stopped"
        return {
            "status": "stopped" if is_stopped else "finished",
            "step": loop.counters.step,
            "reason": loop.ended_because,
            "findings": [],
            "exit_code": int(ExitCode.STOPPED if is_stopped else ExitCode.OK),
        }
