"""The draft of a plan: the stages that choose before time and memory are predicted."""

from __future__ import annotations

from dataclasses import dataclass, field

from phalanx.errors import Finding
from phalanx.job.schema import Job
from phalanx.job.strategies import facts_of
from phalanx.machine import Machine
from phalanx.machine.calibration import Calibration
from phalanx.planner.batch.intervals import (
    choose_length,
)
from phalanx.planner.batch.learning_rate import choose_warmup, lr_findings, scale_lr
from phalanx.planner.batch.size import (
    BatchChoice,
    arithmetic_findings,
    choose_batch,
    ignored_batch,
    keep_micro_batch,
)
from phalanx.planner.choices import devices
from phalanx.planner.choices.frozen_weights import choose_frozen_precision, frozen_by_deepspeed
from phalanx.planner.choices.loading import choose_workers
from phalanx.planner.choices.optimizations import (
    choose_channels_last,
)
from phalanx.planner.choices.strategy import (
    StrategyChoice,
    choose_strategy,
    choose_sync_batchnorm,
)
from phalanx.planner.memory.deepspeed import deepspeed_findings
from phalanx.planner.schema.micro_batches import BatchPlan
from phalanx.planner.schema.placement import Placement
from phalanx.planner.schema.plan import (
    Decision,
    Plan,
)
from phalanx.planner.schema.trace import Trace
from phalanx.planner.time.compile_gain import choose_compile


@dataclass
class Draft:
    """The inputs of a plan, and the choices that its first stages have made."""

    job: Job
    """Later stages read the values chosen for `auto` here."""
    machine: Machine
    trace: Trace
    previous: Plan | None
    calibration: Calibration | None
    findings: list[Finding] = field(default_factory=list)
    predicted_findings: list[Finding] = field(default_factory=list)
    """Findings about rates and memory, listed after all others."""
    placement: Placement = field(init=False)
    precision: Decision[str] = field(init=False)
    frozen: Decision[str] = field(init=False)
    chosen: StrategyChoice = field(init=False)
    synced: Decision[bool] = field(init=False)
    compiled: Decision[str] = field(init=False)
    channels_last: Decision[str] = field(init=False)
    sizes: BatchChoice = field(init=False)
    batch: BatchPlan = field(init=False)
    total: Decision[int] = field(init=False)
    lr: Decision[float] = field(init=False)
    warmup: Decision[int] = field(init=False)

    @property
    def ranks(self) -> int:
        return self.placement.ranks.value

    @property
    def device(self) -> str:
        return self.placement.device.value

    @property
    def strategy(self) -> str:
        return self.chosen.strategy.value

    def workers(self, micro: int) -> Decision[int]:
        """Loader processes of a rank for micro-batches of that size."""
        return choose_workers(
            self.job,
            self.placement,
            self.machine,
            fetch=self.trace.fetch_time(),
            micro=micro,
            are_arrays=self.trace.array_bytes is not None,
        )


def place(draft: Draft) -> None:
    """Choose devices and precision."""
    job, machine = draft.job, draft.machine
    draft.placement = devices.place_ranks(job, machine)
    draft.precision, problems = devices.choose_precision(job, draft.placement, machine)
    draft.findings += problems
    draft.findings += devices.backend_findings(job, draft.placement, machine)
    precision = draft.precision.value
    draft.frozen = choose_frozen_precision(job, draft.trace, precision, draft.previous)
    draft.job = job.model_copy(update={"frozen_precision": draft.frozen.value})


def share_work(draft: Draft) -> None:
    """Choose the strategy and synchronised BatchNorm."""
    job, trace = draft.job, draft.trace
    draft.chosen, problems = choose_strategy(
        job, draft.placement, draft.machine, trace, draft.precision.value
    )
    draft.findings += problems
    draft.synced, problems = choose_sync_batchnorm(job, ranks=draft.ranks, trace=trace)
    draft.findings += problems


def choose_layout(draft: Draft, compiling: Decision[str]) -> None:
    """Choose compiled code and the layout of tensors."""
    precision = draft.precision.value
    draft.compiled, problems = choose_compile(
        compiling,
        draft.job,
        draft.machine,
        draft.trace,
        device=draft.device,
        strategy=draft.strategy,
        is_synced=draft.synced.value,
    )
    draft.findings += problems
    draft.channels_last, problems = choose_channels_last(
        draft.job,
        draft.trace,
        draft.previous,
        device=draft.device,
        strategy=draft.strategy,
        precision=precision,
        is_compiled=draft.compiled.value == "on",
    )
    draft.findings += problems
    settled = {"compile": draft.compiled.value, "channels_last": draft.channels_last.value}
    draft.job = draft.job.model_copy(update=settled)
    if facts_of(draft.strategy).has_half_weights:
        draft.frozen = frozen_by_deepspeed(precision)
        draft.findings += deepspeed_findings(draft.job, device=draft.device, precision=precision)


def size_batch(draft: Draft) -> None:
    """Choose the global batch and a first micro-batch."""
    job, ranks, previous = draft.job, draft.ranks, draft.previous
    if previous is not None:
        sizes = choose_batch(job, ranks, previous.batch.global_batch_size.value)
        draft.sizes, changes = keep_micro_batch(sizes, previous, ranks)
        draft.findings += changes + ignored_batch(job, previous)
    else:
        draft.sizes = choose_batch(job, ranks, None)
        draft.findings += arithmetic_findings(job, draft.sizes, ranks)
    draft.batch = BatchPlan(
        draft.trace.num_samples,
        draft.sizes.global_batch_size.value,
        draft.sizes.micro_batch_size.value,
    )


def choose_schedule(draft: Draft) -> None:
    """Choose the length of the run and its learning rate."""
    job, previous, per_epoch = draft.job, draft.previous, draft.batch.steps_per_epoch
    draft.total = choose_length(job, per_epoch)
    lr = scale_lr(job, draft.batch.global_batch_size)
    draft.findings += lr_findings(job, lr)
    if previous is not None:
        lr = Decision(lr.value, lr.reason) if _asked_again(job, previous) else previous.learning.lr
    draft.lr = lr
    draft.warmup = choose_warmup(
        job, lr=lr.value, total_steps=draft.total.value, steps_per_epoch=per_epoch
    )


def _asked_again(job: Job, previous: Plan) -> bool:
    """Whether the job now states another optimizer than the run's first plan was made for."""
    return bool(job.optimizer.model_dump() != previous.history.identity.get("optimizer"))
