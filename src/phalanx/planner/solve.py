"""(Job, Machine, Trace) -> Plan: pure arithmetic, no torch, nothing asked of the machine."""

from __future__ import annotations

from phalanx.errors import Finding
from phalanx.job.schema import Job
from phalanx.machine import Machine
from phalanx.machine.calibration import Calibration
from phalanx.planner.batch.size import (
    batch_findings,
    choose_evaluate_batch,
    expected_speedup,
)
from phalanx.planner.choices import devices
from phalanx.planner.choices.caching import choose_cache
from phalanx.planner.choices.loading import choose_loading
from phalanx.planner.choices.micro_batch import Predict, choose_micro_batch
from phalanx.planner.choices.optimizations import (
    choose_comparison,
    choose_cuda_graph,
    choose_cudnn_search,
    settle_rung,
    without_each,
)
from phalanx.planner.choices.other_strategies import other_strategies
from phalanx.planner.draft import (
    Draft,
    choose_layout,
    choose_schedule,
    place,
    share_work,
    size_batch,
)
from phalanx.planner.first_plan import first_plan
from phalanx.planner.memory.fit import fit_findings
from phalanx.planner.memory.prediction import with_memory
from phalanx.planner.resize import on_ranks
from phalanx.planner.schema.plan import Decision, Plan
from phalanx.planner.schema.trace import Trace
from phalanx.planner.time.compile_gain import choose_by_gain, with_other
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
    if plan.devices.ranks.value == 1 or plan.predicted.forecast is None:
        return plan, findings
    scaled = on_ranks(job, machine, 1)
    alone, _ = _solve(scaled.job, scaled.machine, trace, None, calibration, plan.execution.compile)
    interval = list(speedup_interval(plan, alone))
    findings += slower_together(plan, alone)
    return plan.replace(speedup=speedup_over(plan, alone), speedup_range=interval), findings


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
    if settled.value != "auto" or compiled.execution.compile.value == "off":
        return compiled, findings
    off = Decision("off", "")
    eager, others = _solve(job, machine, trace, previous, calibration, off)
    chosen = choose_by_gain(trace, eager, compiled)
    if chosen.value == "on":
        return with_other(compiled.replace(compile=chosen), eager), findings
    return with_other(eager.replace(compile=chosen), compiled), others


def _solve(
    job: Job,
    machine: Machine,
    trace: Trace,
    previous: Plan | None,
    calibration: Calibration | None,
    compiling: Decision[str],
) -> tuple[Plan, list[Finding]]:
    draft = Draft(job, machine, trace, previous, calibration)
    place(draft)
    share_work(draft)
    choose_layout(draft, compiling)
    size_batch(draft)
    choose_schedule(draft)
    plan = first_plan(draft)
    plan, predict = _with_predictions(draft, plan)
    plan = _with_micro_batch(draft, plan, predict)
    plan = _with_graph(draft, plan, predict)
    plan = _with_loading(draft, plan, predict)
    plan = _with_forecast(draft, plan, predict)
    plan = _with_alternatives(draft, plan, predict)
    return plan, [*draft.findings, *draft.predicted_findings]


def _with_predictions(draft: Draft, plan: Plan) -> tuple[Plan, Predict]:
    """Return the plan with measured activations, and the function that predicts its time."""
    job, machine, trace, calibration = draft.job, draft.machine, draft.trace, draft.calibration
    cards = draft.placement.cards
    rates, draft.predicted_findings = device_rates(
        machine, draft.device, cards, plan.execution.threads.value, calibration
    )
    plan = with_measured_activations(job, trace, plan, cards, calibration)
    if rates is None:
        return plan, _unknown
    return plan, Forecaster(job, machine, trace, draft.placement, rates, calibration)


def _with_micro_batch(draft: Draft, plan: Plan, predict: Predict) -> Plan:
    """Choose the micro-batch, and what depends on how many samples run at a time."""
    plan, problems = choose_micro_batch(draft.job, plan, draft.previous, predict)
    draft.predicted_findings += problems
    micro = plan.batch.micro_batch_size.value
    plan = plan.replace(
        workers=draft.workers(micro),
        evaluate_batch_size=choose_evaluate_batch(draft.job, micro, draft.previous),
        speedup=expected_speedup(plan.micro_batches, draft.ranks),
    )
    draft.findings += batch_findings(
        plan.micro_batches, draft.ranks, draft.trace, is_synced=draft.synced.value
    )
    return plan


def _with_graph(draft: Draft, plan: Plan, predict: Predict) -> Plan:
    """Choose the CUDA graph after the micro-batch, with which its memory grows."""
    job, trace, previous, forecast = draft.job, draft.trace, draft.previous, predict(plan)
    graph, problems = choose_cuda_graph(job, trace, plan, previous, forecast)
    draft.findings += problems
    search = choose_cudnn_search(job, trace, plan, previous, forecast)
    return with_memory(plan.replace(cuda_graph=graph, cudnn_search=search))


def _with_loading(draft: Draft, plan: Plan, predict: Predict) -> Plan:
    """Choose how samples are loaded and cached."""
    job, machine, trace = draft.job, draft.machine, draft.trace
    plan = choose_loading(job, machine, draft.placement, trace, plan, predict)
    plan, problems = choose_cache(job, machine, trace, plan)
    draft.findings += problems
    return plan


def _with_forecast(draft: Draft, plan: Plan, predict: Predict) -> Plan:
    """Predict time, and judge whether the plan fits in memory."""
    job, machine, trace, cards = draft.job, draft.machine, draft.trace, draft.placement.cards
    compared = choose_comparison(job, trace, plan, cards)
    plan = with_forecast(plan.replace(compared_with_eager=compared), predict(plan))
    draft.findings += devices.debug_findings(plan)
    if draft.previous is None:  # a run that goes on has shown that it fits, or is being cut
        hosts = machine.nodes * machine.memory.total_bytes
        draft.predicted_findings += fit_findings(job, trace, plan, cards, hosts)
    return plan


def _with_alternatives(draft: Draft, plan: Plan, predict: Predict) -> Plan:
    """List what else was considered, and why it lost."""
    others = other_strategies(draft.job, draft.trace, plan, draft.placement, predict)
    slower = without_each(plan, predict)
    return plan.replace(alternatives=[*others, *plan.predicted.alternatives, *slower])


def _unknown(plan: Plan) -> None:
    """The forecast for a device of which nothing is known."""
