"""The parts of one rank that run optimizer steps, put together in the order that matters.

A run and `bench` take them from here, so that what is measured is what trains.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from phalanx.engine.checkpoint.initial_weights import load_initial_weights, plain_file
from phalanx.engine.checkpoint.pretrained import Pretrained
from phalanx.engine.data.micro_batches import Fetcher, MicroBatch, Request, move
from phalanx.engine.data.order import INIT
from phalanx.engine.data.step_feed import Feed
from phalanx.engine.fast.cuda_graph import GraphedStep
from phalanx.engine.fast.validation import Dropped, FastPath
from phalanx.engine.model.blocks import find_blocks
from phalanx.engine.model.recompute import recompute_in_backward
from phalanx.engine.model.sync_batchnorm import BatchStatistics, synchronise_norms
from phalanx.engine.process.group import Process
from phalanx.engine.process.out_of_memory import during
from phalanx.engine.rank.feed import Wishes, make_feed, stop_step
from phalanx.engine.strategies.base import Strategy
from phalanx.engine.strategies.ddp import Ddp
from phalanx.engine.strategies.exact import Exact
from phalanx.engine.strategies.optimizers import Schedule, make_optimizer
from phalanx.engine.strategies.precision import Precision
from phalanx.engine.strategies.single import Single
from phalanx.engine.strategies.together import Together
from phalanx.engine.training.step import TrainStep
from phalanx.errors import Finding, format_bytes
from phalanx.job.schema import Job
from phalanx.job.strategies import facts_of
from phalanx.planner.memory.deepspeed import deepspeed_settings
from phalanx.planner.schema.plan import Plan
from phalanx.recipe.interface import Data, Recipe
from phalanx.recipe.keys import make_key
from phalanx.recipe.pretrained import stored_weights

if TYPE_CHECKING:
    from phalanx.engine.data.disk_cache import DiskCache
    from phalanx.engine.data.sample_cache import SampleCache
    from phalanx.engine.fast.compile import Compiler


class Assembly:
    """Model, strategy, optimizer and step of one rank, settled and ready for the first step."""

    def __init__(
        self,
        job: Job,
        plan: Plan,
        process: Process,
        *,
        recipe: Recipe,
        data: Data,
        is_evaluation: bool = False,
        say: Callable[[str], None] = lambda what: None,
    ) -> None:
        """`data` is the train split, or what is evaluated; `say` hears of what takes a while."""
        self.job = job
        self.plan = plan
        self.process = process
        self.recipe = recipe
        self._is_evaluation = is_evaluation
        self.precision = Precision(
            plan.numerics.precision.value,
            process.device,
            is_channels_last=plan.execution.channels_last.value == "on",
            # DeepSpeed makes its own copies of all weights, and keeps what is frozen in 16 bits.
            is_frozen_narrow=plan.numerics.frozen_precision.value == "compute"
            and not facts_of(plan.parallel.strategy.value).has_half_weights,
        )
        self.precision.configure()
        self.pretrained = Pretrained(stored_weights(recipe))
        """What the recipe reads from files."""
        self.findings: list[Finding] = []
        """What was found on the way here."""
        self._statistics: BatchStatistics | None = None
        self._compiler = self._make_compiler()
        self.strategy = self._make_strategy()
        if self._compiler is not None:
            self._compiler.compile_loss(self.strategy)
        self._synchronise_norms()
        self._load_weights(say)
        optimizer = make_optimizer(
            recipe, self.strategy.model, job.optimizer, plan.learning.lr.value
        )
        self.strategy.adopt(optimizer, self.precision, job.optimizer.clip_norm)
        self._cache = self._open_cache()
        kept = data if self._cache is None else self._cache.keep(data)
        self.fetcher = Fetcher(
            recipe, kept, seed=job.seed, is_shuffled=True, epochs=_num_epochs(plan)
        )
        # The probe is always the first step's, so that a resumed run settles like an unbroken one.
        self.probe = self._probe()
        schedule = Schedule(
            job.schedule,
            momentum=job.optimizer.momentum,
            peak_lr=plan.learning.lr.value,
            warmup_steps=plan.learning.warmup_steps.value,
            total_steps=plan.batch.total_steps.value,
        )
        self._plain_step = TrainStep(
            strategy=self.strategy,
            schedule=schedule,
            seed=job.seed,
            filler=self.probe,
            gain=recipe.loss_gain,
            least_weight=recipe.least_weight,
        )
        self.train_step: TrainStep | GraphedStep = self._plain_step
        """Runs the steps: kernel by kernel, or as CUDA graphs."""
        self.terms: list[str] = []
        """Names of the loss terms, where settling ran the model."""
        self.dropped: list[Dropped] = []
        """Rungs of speed that did not hold; they are off."""
        with during("settle"):
            self._settle(say)
        if plan.execution.cuda_graph.value == "on":  # after settling, which runs passes of its own
            self.train_step = GraphedStep(self._plain_step)

    def _load_weights(self, say: Callable[[str], None]) -> None:
        if self.pretrained.stored:
            say(f"reading pretrained weights, {format_bytes(self.pretrained.num_bytes())}")
            self.pretrained.load(self.strategy)
        if self.job.init_from is not None:
            source = plain_file(self.recipe, Path(self.job.init_from))
            self.findings += load_initial_weights(self.strategy, source, self.pretrained)

    def make_feed(self, start: int, wishes: Wishes) -> Feed:
        """The steps of this rank from one on; loader processes are forked here."""
        return make_feed(
            self.fetcher,
            self.plan,
            self.process,
            start=start,
            seed=self.job.seed,
            prefetch=self.job.loader.prefetch,
            terms=None if self.probe.weights is None else sorted(self.probe.weights),
            wishes=wishes,
            stop_at=stop_step(self.job, self.plan, start),
        )

    def test_data(self) -> Data:
        """The test split, its samples kept in memory where the plan says so."""
        data = self.recipe.data("test")
        if self._cache is None or not self.plan.loading.is_test_cached:
            return data
        kept: Data = self._cache.keep(data, first=self.plan.batch.num_samples.value)
        return kept

    def _open_cache(self) -> SampleCache | DiskCache | None:
        if self.plan.loading.cache.value == "off":
            return None
        if self.plan.loading.cache.value == "disk":
            from phalanx.engine.data.disk_cache import DiskCache, samples_folder

            return DiskCache(samples_folder(), limit_bytes=self.plan.loading.cache_bytes)
        from phalanx.engine.data.sample_cache import open_cache

        samples = self.plan.batch.num_samples.value + self.plan.batch.num_test_samples.value
        return open_cache(self.process, samples=samples, limit_bytes=self.plan.loading.cache_bytes)

    def _make_strategy(self) -> Strategy:
        # Built on the CPU from one seed: the same weights on every rank, device and rank count.
        torch.manual_seed(make_key(self.job.seed, INIT) & (1 << 62) - 1)
        if self.plan.parallel.strategy.value == "fsdp":
            from phalanx.engine.strategies.fsdp import make_fsdp  # half a second of imports

            return make_fsdp(
                self.recipe,
                self.process,
                self.precision,
                self.job.fsdp,
                shard_ranks=self.plan.parallel.shard_ranks.value,
                build=self.plan.parallel.build.value,
                is_offloaded=self.plan.parallel.offload.value is not None,
                adapt=self._adapt,
                unread=self.pretrained.stored,
            )
        model = self.precision.convert(self.recipe.model(), unread=self.pretrained.stored)
        if self.plan.parallel.strategy.value == "deepspeed":
            from phalanx.engine.strategies.deepspeed import Deepspeed

            self._adapt(model)
            settings = deepspeed_settings(self.job, self.plan)
            return Deepspeed(self.recipe, model, self.process, settings)
        model = self.precision.lay_out(model.to(self.process.device))
        self._adapt(model)
        if self.plan.numerics.determinism.value == "exact":
            return Exact(self.recipe, model, self.process)
        if self.plan.parallel.strategy.value == "ddp":
            return Ddp(self.recipe, model, self.process, self.job.ddp)
        return Single(self.recipe, model, self.process)

    def _adapt(self, model: torch.nn.Module) -> None:
        """Change how the model runs, before a strategy wraps or shards it."""
        if self.plan.numerics.sync_batchnorm.value:
            self._statistics = synchronise_norms(model, self.process)
        is_checkpointed = self.plan.execution.activation_checkpointing.value
        if self._compiler is not None:
            self._compiler.compile_blocks(self.recipe, model, is_checkpointed=is_checkpointed)
        if is_checkpointed:
            recompute_in_backward(find_blocks(self.recipe, model))
        if self._compiler is not None:
            self._compiler.keep_blocks_apart()

    def _make_compiler(self) -> Compiler | None:
        if self.plan.execution.compile.value == "off":
            return None
        from phalanx.engine.fast.compile import Compiler  # its imports take seconds

        return Compiler(
            is_deterministic=self.plan.numerics.determinism.value == "resume",
            is_code_kept=self.plan.execution.is_code_kept,
        )

    def _synchronise_norms(self) -> None:
        if self._statistics is not None:
            assert isinstance(self.strategy, Together)  # one rank has nothing to synchronise
            self.strategy.synchronise(self._statistics)

    def _probe(self) -> MicroBatch:
        slots = self.plan.micro_batches.slots_of(0)
        request = Request(0, slots[self.process.rank % len(slots)], is_training=True)
        fetched: MicroBatch = move(self.fetcher[request], self.process.device)
        return fetched

    def _settle(self, say: Callable[[str], None]) -> None:
        if self._is_evaluation and self._compiler is None:
            return  # no gradient is reduced, and nothing is compared

        def run_backward(micro_batch: MicroBatch) -> dict[str, torch.Tensor]:
            sums = self._plain_step.discard(micro_batch)
            self.terms = list(sums)
            return sums

        self.fast_path = FastPath(self.plan, self.strategy, self._compiler)
        self.dropped = self.fast_path.settle(self.probe, run_backward, say)
        self.findings += self.strategy.settle(self.probe, run_backward)


def _num_epochs(plan: Plan) -> int:
    """Passes over the data, the last of which may end early."""
    return -(-plan.batch.total_steps.value // plan.batch.steps_per_epoch.value)
