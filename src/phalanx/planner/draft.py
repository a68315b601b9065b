"""The draft of a plan: the stages that choose before time and memory are predicted."""

from __future__ import annotations

from dataclasses import dataclass, field

from phalanx.errors import Finding
from phalanx.job.schema import Job
from phalanx.job.strategies import facts_of
from phalanx.machine import Machine
from phalanx.machine.calibration import Calibration
from phalanx.planner.batch.intervals import (
    choose_background,
    choose_evaluation,
    choose_length,
    choose_save_share,
    choose_saving,
)
from phalanx.planner.batch.learning_rate import choose_warmup, lr_findings, scale_lr
from phalanx.planner.batch.size import (
    BATCH_KEYS,
    BatchChoice,
    arithmetic_findings,
    choose_batch,
    choose_evaluate_batch,
    expected_speedup,
    ignored_batch,
    keep_micro_batch,
)
from phalanx.planner.choices import devices
from phalanx.planner.choices.frozen_weights import choose_frozen_precision, frozen_by_deepspeed
from phalanx.planner.choices.loading import choose_pin_memory, choose_workers
from phalanx.planner.choices.optimizations import (
    choose_channels_last,
)
from phalanx.planner.choices.strategy import (
    StrategyChoice,
    choose_strategy,
    choose_sync_batchnorm,
)
from phalanx.planner.memory.deepspeed import choose_zero_stage, deepspeed_findings
from phalanx.planner.memory.prediction import make_footprint, smallest_memory
from phalanx.planner.revise import ALLOCATOR_VARIABLE
from phalanx.planner.schema.identity import identity_of
from phalanx.planner.schema.micro_batches import BatchPlan
from phalanx.planner.schema.placement import Placement
from phalanx.planner.schema.plan import (
    Batch,
    Decision,
    Evaluation,
    Execution,
    History,
    Learning,
    Loading,
    Numerics,
    Parallel,
    Plan,
    Predicted,
    RankDevices,
    Saving,
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


def first_plan(draft: Draft) -> Plan:
    """Return the plan as chosen before anything is predicted."""
    previous = draft.previous
    return Plan(
        revision=previous.revision + 1 if previous is not None else 0,
        devices=_devices(draft),
        parallel=_parallel(draft),
        numerics=_numerics(draft),
        execution=_execution(draft),
        batch=_batch(draft),
        learning=Learning(lr=draft.lr, warmup_steps=draft.warmup, ema=_choose_ema(draft.job)),
        loading=_loading(draft),
        evaluation=_evaluation(draft),
        saving=_saving(draft),
        predicted=_predicted(draft),
        history=_history(draft),
    )


def _devices(draft: Draft) -> RankDevices:
    job, machine, placement = draft.job, draft.machine, draft.placement
    return RankDevices(
        device=placement.device,
        gpus=placement.gpus,
        ranks=placement.ranks,
        nodes=devices.choose_nodes(placement, machine),
        backend=devices.choose_backend(job, placement, machine, draft.strategy),
        comm_timeout_s=devices.choose_comm_timeout(job),
        device_bytes=smallest_memory(placement.cards) if draft.device == "cuda" else None,
        worker_env=_worker_env(draft),
        environment=machine.environment,
    )


def _parallel(draft: Draft) -> Parallel:
    chosen = draft.chosen
    return Parallel(
        strategy=chosen.strategy,
        shard_ranks=chosen.shard_ranks,
        build=chosen.build,
        zero_stage=choose_zero_stage(draft.job, draft.strategy),
        offload=chosen.offload,
    )


def _numerics(draft: Draft) -> Numerics:
    return Numerics(
        precision=draft.precision,
        frozen_precision=draft.frozen,
        determinism=devices.choose_determinism(draft.job, draft.device),
        sync_batchnorm=draft.synced,
        has_batchnorm=draft.trace.has_batchnorm,
    )


def _execution(draft: Draft) -> Execution:
    return Execution(
        compile=draft.compiled,
        channels_last=draft.channels_last,
        threads=devices.choose_threads(draft.job, draft.placement, draft.machine, draft.previous),
        num_blocks=draft.trace.num_blocks,
    )


def _batch(draft: Draft) -> Batch:
    trace, sizes, batch = draft.trace, draft.sizes, draft.batch
    whole = f"{trace.num_samples} / {batch.global_batch_size}, rounded up: every sample once"
    return Batch(
        num_samples=Decision(trace.num_samples, "samples in the train split"),
        num_test_samples=Decision(trace.num_test_samples, "samples in the test split"),
        global_batch_size=sizes.global_batch_size,
        micro_batch_size=sizes.micro_batch_size,
        accumulation=sizes.accumulation,
        steps_per_epoch=Decision(batch.steps_per_epoch, whole),
        total_steps=draft.total,
    )


def _loading(draft: Draft) -> Loading:
    return Loading(
        workers=draft.workers(draft.sizes.micro_batch_size.value),
        pin_memory=choose_pin_memory(draft.job, draft.device),
    )


def _evaluation(draft: Draft) -> Evaluation:
    job, trace, micro = draft.job, draft.trace, draft.sizes.micro_batch_size.value
    total, per_epoch = draft.total.value, draft.batch.steps_per_epoch
    return Evaluation(
        evaluate_every=choose_evaluation(job, trace, total, per_epoch),
        evaluate_batch_size=choose_evaluate_batch(job, micro, draft.previous),
        metric=_asked_or(job.evaluate.metric, trace.metric, "evaluate.metric"),
        metric_mode=_asked_or(job.evaluate.mode, trace.metric_mode, "evaluate.mode"),
    )


def _saving(draft: Draft) -> Saving:
    job = draft.job
    steps, seconds = choose_saving(job, draft.total.value, draft.batch.steps_per_epoch)
    return Saving(
        save_every_steps=steps,
        save_every_s=seconds,
        save_share=choose_save_share(job),
        save_in_background=choose_background(job),
    )


def _predicted(draft: Draft) -> Predicted:
    """What is known of it before rates and memory are."""
    trace, chosen = draft.trace, draft.chosen
    return Predicted(
        speedup=expected_speedup(draft.batch, draft.ranks),
        parameters=Decision(trace.parameters, f"{trace.trainable_parameters} of them learn"),
        footprint=make_footprint(
            draft.job,
            trace,
            draft.precision.value,
            draft.strategy,
            draft.placement.cards,
            chosen.shard_ranks.value,
            chosen.offload.value,
        ),
    )


def _history(draft: Draft) -> History:
    job, before = draft.job, draft.previous
    stated = {key: getattr(job, key) for key in BATCH_KEYS}
    return History(
        identity=identity_of(job, draft.trace, draft.batch, draft.precision.value),
        stated_batch=before.history.stated_batch if before is not None else stated,
        shrunk=before.history.shrunk if before is not None else {},
    )


def _choose_ema(job: Job) -> Decision[float | None]:
    ema = job.ema
    if ema.decay is None:
        return Decision(None, "ema.decay = null")
    parts = [f"ema.decay = {ema.decay:g}"]
    if ema.warmup:
        parts.append("rising from 0.1 as (1 + n) / (10 + n)")
    parts.append(f"evaluation is of the {'averaged' if ema.evaluate else 'plain'} weights")
    return Decision(ema.decay, "; ".join(parts))


def _asked_or(asked: str | None, default: str, key: str) -> Decision[str]:
    if asked is not None:
        return Decision(asked, f"{key} = {asked}")
    return Decision(default, "the recipe's own choice")


def _asked_again(job: Job, previous: Plan) -> bool:
    """Whether the job now states another optimizer than the run's first plan was made for."""
    return bool(job.optimizer.model_dump() != previous.history.identity.get("optimizer"))


def _worker_env(draft: Draft) -> dict[str, str]:
    env, is_cuda = dict(draft.machine.worker_env), draft.device == "cuda"
    before = draft.previous.devices.worker_env if draft.previous is not None else {}
    if is_cuda and ALLOCATOR_VARIABLE in before:
        env.setdefault(ALLOCATOR_VARIABLE, before[ALLOCATOR_VARIABLE])
    if is_cuda and devices.choose_determinism(draft.job, "cuda").value in ("resume", "exact"):
        # docs.nvidia.com/cuda/cublas, "Results reproducibility"
        env["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    return env
