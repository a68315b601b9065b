"""The plan as chosen before time and memory are predicted, section by section."""

from __future__ import annotations

from phalanx.job.schema import Job
from phalanx.planner.batch.intervals import (
    choose_background,
    choose_evaluation,
    choose_save_share,
    choose_saving,
)
from phalanx.planner.batch.size import (
    BATCH_KEYS,
    choose_evaluate_batch,
    expected_speedup,
)
from phalanx.planner.choices import devices
from phalanx.planner.choices.loading import choose_pin_memory
from phalanx.planner.draft import Draft
from phalanx.planner.memory.deepspeed import choose_zero_stage
from phalanx.planner.memory.prediction import make_footprint, smallest_memory
from phalanx.planner.revise import ALLOCATOR_VARIABLE
from phalanx.planner.schema.identity import identity_of
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


def _worker_env(draft: Draft) -> dict[str, str]:
    env, is_cuda = dict(draft.machine.worker_env), draft.device == "cuda"
    before = draft.previous.devices.worker_env if draft.previous is not None else {}
    if is_cuda and ALLOCATOR_VARIABLE in before:
        env.setdefault(ALLOCATOR_VARIABLE, before[ALLOCATOR_VARIABLE])
    if is_cuda and devices.choose_determinism(draft.job, "cuda").value in ("resume", "exact"):
        # docs.nvidia.com/cuda/cublas, "Results reproducibility"
        env["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    return env
