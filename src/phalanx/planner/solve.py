"""(Job, Machine, Trace) -> Plan: pure arithmetic, no torch, nothing asked of the machine."""

from __future__ import annotations

from dataclasses import replace

from phalanx.errors import Finding
from phalanx.job.schema import Job
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
    arithmetic_findings,
    batch_findings,
    choose_batch,
    choose_evaluate_batch,
    expected_speedup,
    ignored_batch,
    keep_micro_batch,
)
from phalanx.planner.choices import devices
from phalanx.planner.choices.caching import choose_cache
from phalanx.planner.choices.frozen_weights import choose_frozen_precision, frozen_by_deepspeed
from phalanx.planner.choices.loading import choose_loading, choose_pin_memory, choose_workers
from phalanx.planner.choices.micro_batch import Predict, choose_micro_batch
from phalanx.planner.choices.optimizations import (
    choose_channels_last,
    choose_comparison,
    choose_cuda_graph,
    choose_cudnn_search,
    settle_rung,
    without_each,
)
from phalanx.planner.choices.other_strategies import other_strategies
from phalanx.planner.choices.strategy import choose_strategy, choose_sync_batchnorm
from phalanx.planner.memory.deepspeed import choose_zero_stage, deepspeed_findings
from phalanx.planner.memory.fit import fit_findings
from phalanx.planner.memory.prediction import make_footprint, smallest_memory, with_memory
from phalanx.planner.resize import on_ranks
from phalanx.planner.revise import ALLOCATOR_VARIABLE
from phalanx.planner.schema.identity import identity_of
from phalanx.planner.schema.micro_batches import BatchPlan
from phalanx.planner.schema.placement import Placement
from phalanx.planner.schema.plan import Decision, Plan
from phalanx.planner.schema.trace import Trace
from phalanx.planner.time.compile_gain import choose_by_gain, choose_compile, with_other
from phalanx.planner.time.forecast_reasons import with_forecast
from phalanx.planner.time.forecaster import Forecaster
from phalanx.planner.time.rates import device_rates
from phalanx.planner.time.speedup import slower_together, speedup_interval, speedup_over
from phalanx.planner.time.untraced import with_measured_activations


def solve_plan(
    job: Job,
    machine: Machine,
    trace: Trace,
    *,
    previous: Plan | None = None,
    calibration: Calibration | None = None,
) -> tuple[Plan, list[Finding]]:
    """Make every choice; `previous` is the plan of a run that continues, `calibration` what was
    measured of such a machine."""
    plan, findings = _solve_fastest(job, machine, trace, previous, calibration)
    if plan.ranks.value == 1 or plan.forecast is None:
        return plan, findings
    scaled = on_ranks(job, machine, 1)
    alone, _ = _solve(scaled.job, scaled.machine, trace, None, calibration, plan.compile)
    interval = list(speedup_interval(plan, alone))
    findings += slower_together(plan, alone)
    return replace(plan, speedup=speedup_over(plan, alone), speedup_range=interval), findings


def _solve_fastest(
    job: Job,
    machine: Machine,
    trace: Trace,
    previous: Plan | None,
    calibration: Calibration | None,
) -> tuple[Plan, list[Finding]]:
    """Compiled and not, where that is open, and the one that ends sooner."""
    settled = settle_rung(job, "compile", previous)
    compiled, findings = _solve(job, machine, trace, previous, calibration, settled)
    if settled.value != "auto" or compiled.compile.value == "off":
        return compiled, findings
    off = Decision("off", "")
    eager, others = _solve(job, machine, trace, previous, calibration, off)
    chosen = choose_by_gain(trace, eager, compiled)
    if chosen.value == "on":
        return with_other(replace(compiled, compile=chosen), eager), findings
    return with_other(replace(eager, compile=chosen), compiled), others


def _solve(
    job: Job,
    machine: Machine,
    trace: Trace,
    previous: Plan | None,
    calibration: Calibration | None,
    compiling: Decision[str],
) -> tuple[Plan, list[Finding]]:
    placement = devices.place_ranks(job, machine)
    ranks, device = placement.ranks.value, placement.device.value
    precision, findings = devices.choose_precision(job, placement, machine)
    findings += devices.backend_findings(job, placement, machine)
    frozen = choose_frozen_precision(job, trace, precision.value, previous)
    # As is whatever is predicted from here on.
    job = job.model_copy(update={"frozen_precision": frozen.value})
    chosen, problems = choose_strategy(job, placement, machine, trace, precision.value)
    findings += problems
    synced, problems = choose_sync_batchnorm(job, ranks=ranks, trace=trace)
    findings += problems
    strategy = chosen.strategy.value
    compiled, problems = choose_compile(
        compiling,
        job,
        machine,
        trace,
        device=device,
        strategy=strategy,
        is_synced=synced.value,
    )
    findings += problems
    channels_last, problems = choose_channels_last(
        job,
        trace,
        previous,
        device=device,
        strategy=strategy,
        precision=precision.value,
        is_compiled=compiled.value == "on",
    )
    findings += problems
    # What is predicted from here on.
    job = job.model_copy(update={"compile": compiled.value, "channels_last": channels_last.value})
    if chosen.strategy.value == "deepspeed":
        frozen = frozen_by_deepspeed(precision.value)
        findings += deepspeed_findings(job, device=device, precision=precision.value)
    kept_size = previous.global_batch_size.value if previous is not None else None
    sizes = choose_batch(job, ranks, kept_size)
    if previous is not None:
        sizes, changes = keep_micro_batch(sizes, previous, ranks)
        findings += changes + ignored_batch(job, previous)
    else:
        findings += arithmetic_findings(job, sizes, ranks)
    batch = BatchPlan(
        trace.num_samples, sizes.global_batch_size.value, sizes.micro_batch_size.value
    )
    per_epoch = batch.steps_per_epoch
    threads = devices.choose_threads(job, placement, machine, previous)
    total = choose_length(job, per_epoch)
    lr = scale_lr(job, batch.global_batch_size)
    findings += lr_findings(job, lr)
    if previous is not None:
        lr = Decision(lr.value, lr.reason) if _asked_again(job, previous) else previous.lr
    warmup = choose_warmup(job, lr=lr.value, total_steps=total.value, steps_per_epoch=per_epoch)
    determinism = devices.choose_determinism(job, device)
    save_steps, save_seconds = choose_saving(job, total.value, per_epoch)
    plan = Plan(
        revision=previous.revision + 1 if previous is not None else 0,
        device=placement.device,
        gpus=placement.gpus,
        ranks=placement.ranks,
        nodes=devices.choose_nodes(placement, machine),
        backend=devices.choose_backend(job, placement, machine, chosen.strategy.value),
        comm_timeout_s=devices.choose_comm_timeout(job),
        strategy=chosen.strategy,
        shard_ranks=chosen.shard_ranks,
        build=chosen.build,
        zero_stage=choose_zero_stage(job, chosen.strategy.value),
        offload=chosen.offload,
        precision=precision,
        frozen_precision=frozen,
        determinism=determinism,
        sync_batchnorm=synced,
        compile=compiled,
        channels_last=channels_last,
        threads=threads,
        num_samples=Decision(trace.num_samples, "samples in the train split"),
        num_test_samples=Decision(trace.num_test_samples, "samples in the test split"),
        global_batch_size=sizes.global_batch_size,
        micro_batch_size=sizes.micro_batch_size,
        accumulation=sizes.accumulation,
        steps_per_epoch=Decision(
            per_epoch,
            f"{trace.num_samples} / {batch.global_batch_size}, rounded up: every sample once",
        ),
        total_steps=total,
        lr=lr,
        warmup_steps=warmup,
        ema=_choose_ema(job),
        workers=choose_workers(
            job,
            placement,
            machine,
            fetch=trace.fetch_time(),
            micro=sizes.micro_batch_size.value,
            are_arrays=trace.array_bytes is not None,
        ),
        pin_memory=choose_pin_memory(job, device),
        evaluate_every=choose_evaluation(job, trace, total.value, per_epoch),
        evaluate_batch_size=choose_evaluate_batch(job, sizes.micro_batch_size.value, previous),
        metric=_asked_or(job.evaluate.metric, trace.metric, "evaluate.metric"),
        metric_mode=_asked_or(job.evaluate.mode, trace.metric_mode, "evaluate.mode"),
        save_every_steps=save_steps,
        save_every_s=save_seconds,
        save_share=choose_save_share(job),
        save_in_background=choose_background(job),
        speedup=expected_speedup(batch, ranks),
        parameters=Decision(trace.parameters, f"{trace.trainable_parameters} of them learn"),
        worker_env=_worker_env(machine, determinism.value, device, previous),
        environment=machine.environment,
        stated_batch=(
            previous.stated_batch
            if previous is not None
            else {key: getattr(job, key) for key in BATCH_KEYS}
        ),
        has_batchnorm=trace.has_batchnorm,
        num_blocks=trace.num_blocks,
        footprint=make_footprint(
            job,
            trace,
            precision.value,
            chosen.strategy.value,
            placement.cards,
            chosen.shard_ranks.value,
            chosen.offload.value,
        ),
        device_bytes=smallest_memory(placement.cards) if device == "cuda" else None,
        shrunk=previous.shrunk if previous is not None else {},
        identity=identity_of(job, trace, batch, precision.value),
    )
    rates, about_rates = device_rates(machine, device, placement.cards, threads.value, calibration)
    plan = with_measured_activations(job, trace, plan, placement.cards, calibration)
    predict: Predict = _unknown
    if rates is not None:
        predict = Forecaster(job, machine, trace, placement, rates, calibration)
    plan, about_memory = choose_micro_batch(job, plan, previous, predict)
    plan = _follow_micro_batch(job, machine, placement, trace, plan, previous)
    findings += batch_findings(plan.batch, ranks, trace, is_synced=synced.value)
    plan, problems = _with_graph(job, trace, plan, previous, predict)
    findings += problems
    plan = choose_loading(job, machine, placement, trace, plan, predict)
    plan, problems = choose_cache(job, machine, trace, plan)
    findings += problems
    compared = choose_comparison(job, trace, plan, placement.cards)
    plan = with_forecast(replace(plan, compared_with_eager=compared), predict(plan))
    findings += devices.debug_findings(plan)
    if previous is None:  # a run that goes on has shown that it fits, or is being cut
        hosts = machine.nodes * machine.memory.total_bytes
        about_memory += fit_findings(job, trace, plan, placement.cards, hosts)
    others = other_strategies(job, trace, plan, placement, predict)
    slower = without_each(plan, predict)
    plan = replace(plan, alternatives=[*others, *plan.alternatives, *slower])
    return plan, [*findings, *about_rates, *about_memory]


def _with_graph(
    job: Job, trace: Trace, plan: Plan, previous: Plan | None, predict: Predict
) -> tuple[Plan, list[Finding]]:
    """After the micro-batch, with which its memory grows."""
    forecast = predict(plan)
    graph, findings = choose_cuda_graph(job, trace, plan, previous, forecast)
    search = choose_cudnn_search(job, trace, plan, previous, forecast)
    return with_memory(replace(plan, cuda_graph=graph, cudnn_search=search)), findings


def _follow_micro_batch(
    job: Job,
    machine: Machine,
    placement: Placement,
    trace: Trace,
    plan: Plan,
    previous: Plan | None,
) -> Plan:
    """Choices that depend on how many samples run at a time."""
    micro = plan.micro_batch_size.value
    return replace(
        plan,
        workers=choose_workers(
            job,
            placement,
            machine,
            fetch=trace.fetch_time(),
            micro=micro,
            are_arrays=trace.array_bytes is not None,
        ),
        evaluate_batch_size=choose_evaluate_batch(job, micro, previous),
        speedup=expected_speedup(plan.batch, plan.ranks.value),
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
    return bool(job.optimizer.model_dump() != previous.identity.get("optimizer"))


def _worker_env(
    machine: Machine, determinism: str, device: str, previous: Plan | None
) -> dict[str, str]:
    env = dict(machine.worker_env)
    if previous is not None and device == "cuda" and ALLOCATOR_VARIABLE in previous.worker_env:
        env.setdefault(ALLOCATOR_VARIABLE, previous.worker_env[ALLOCATOR_VARIABLE])
    if device == "cuda" and determinism in ("resume", "exact"):
        # docs.nvidia.com/cuda/cublas, "Results reproducibility"
        env["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    return env


def _unknown(plan: Plan) -> None:
    """The forecast for a device of which nothing is known."""
