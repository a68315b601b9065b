"""Whether the model is compiled, by what that gains and costs, and what is assumed of compiled
code."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from phalanx.errors import Finding, format_bytes, format_seconds
from phalanx.job.schema import Job
from phalanx.job.strategies import facts_of
from phalanx.machine import Machine
from phalanx.planner.memory.prediction import fits_for_sure
from phalanx.planner.schema.footprint import COMPILED
from phalanx.planner.schema.operators import Operator
from phalanx.planner.schema.plan import Alternative, Decision, Plan
from phalanx.planner.schema.trace import Trace
from phalanx.planner.time.rates import Rates
from phalanx.planner.time.roofline import Compute, time_operators

# What compiling takes: importing the compiler, and code for an operator (90 s / 30 layers / 60).
_START_S = 2.0
_OPERATOR_S = 0.05
_WORTH = 1.02  # of a step compiled: a smaller gain is within what is not known
# Compiled code starts its kernels from a few lines without autograd and dispatch: its share of the
# host's time for an operator. Not fitted yet.
_HOST_SHARE = 0.1
_MARK = "compiled "
"""Begins the name of an operator in compiled code."""


def as_compiled(operator: Operator) -> Operator:
    """The operator, told from those that are not compiled."""
    return operator._replace(name=_MARK + operator.name)


def time_code(
    operators: Iterable[Operator],
    micro_batch: int,
    rates: Rates,
    precision: str,
    *,
    is_turned: bool = True,
) -> Compute:
    """Forward and backward of one micro-batch, some or all of it compiled."""
    parts: dict[bool, list[Operator]] = {False: [], True: []}
    for operator in operators:
        name = operator.name.removeprefix(_MARK)  # kernels are told apart by their own names
        parts[name != operator.name].append(operator._replace(name=name))
    # Compiled code brings rows of unaligned lengths into shape before it multiplies them.
    eager, compiled = (
        time_operators(
            parts[kind], micro_batch, replace(rates, pads=kind), precision, is_turned=is_turned
        )
        for kind in (False, True)
    )
    return Compute(
        eager.forward_s + compiled.forward_s,
        eager.backward_s + compiled.backward_s,
        eager.host_s + _HOST_SHARE * compiled.host_s,
    )


def choose_compile(
    settled: Decision[str],
    job: Job,
    machine: Machine,
    trace: Trace,
    *,
    device: str,
    strategy: str,
    is_synced: bool,
) -> tuple[Decision[str], list[Finding]]:
    """`on` where that is settled, or tried for `auto`, and nothing speaks against it; a Finding
    where the job asks for it in vain."""
    if settled.value == "off":
        return settled, []
    against = _against(machine, device, strategy, is_synced)
    if settled.value == "auto":
        against = against or _against_auto(job, trace, device)
        if against is None:
            return Decision("on", "auto"), []
        return Decision("off", f"auto: {against[0]}"), []
    if against is None:
        return settled, []
    what, fix = against
    finding = Finding(
        slug="compile-left-off",
        what=f"the model is not compiled: {what}",
        why=f"{settled.reason}; strategy {strategy}, device {device}",
        fix=fix,
        severity="warning",
    )
    return Decision("off", f"{settled.reason}, but {what}"), [finding]


def _against(
    machine: Machine, device: str, strategy: str, is_synced: bool
) -> tuple[str, str] | None:
    """(what speaks against compiling, what to change)."""
    if not facts_of(strategy).takes_compile:
        return "DeepSpeed's own hooks run inside the model", "strategy=fsdp, or compile=off"
    if is_synced:
        return (
            "BatchNorm talks to the other ranks in the middle of forward (sync_batchnorm = true)",
            "sync_batchnorm=false, or compile=off",
        )
    if device == "mps":
        return "torch.compile is not ready for Apple's MPS", "compile=off"
    # A machine that is only described has whatever it needs.
    if machine.c_compiler is None and not machine.assumed:
        return (
            "no C compiler was found on this machine, and torch.compile calls one",
            "`sudo apt install build-essential`, or compile=off",
        )
    return None


def _against_auto(job: Job, trace: Trace, device: str) -> tuple[str, str] | None:
    """What speaks against compiling where nobody asked for it."""
    if device == "cpu":
        return (
            "on CPU the C++ compiler takes longer than most jobs gain, and the gain is not "
            "predicted; compile=on tries it",
            "compile=on",
        )
    if job.determinism == "exact":
        return "determinism = exact, and other micro-batches get other kernels", "compile=off"
    if job.determinism == "resume" and trace.varying_shapes is not None:
        return (
            "determinism = resume makes code for each shape, and micro-batches differ in shape: "
            f"{trace.varying_shapes}",
            "determinism=fast",
        )
    unknown = trace.activations_unknown or trace.compiled_unknown
    if unknown is not None:
        return f"what compiled code takes could not be told: {unknown}", "compile=on"
    if not any(kind.endswith(COMPILED) for kind in trace.operators):
        return "what compiled code takes was not traced", "compile=on"
    return None


def compile_seconds(trace: Trace) -> float:
    """What compiling costs with an empty cache. A model of 30 layers took over 90 s whole, and 4 s
    one block at a time; such a layer is about 60 operators forward and backward. Measured on one
    machine only."""
    written = (trace.operators[kind] for kind in trace.operators if not kind.endswith(COMPILED))
    operators = sum(operator.times for operator in next(written, []) if operator.kind != "view")
    share = 1.0
    if trace.block_kinds and trace.num_blocks:
        # The first block's input has no gradient: it has code of its own.
        share = min(1.0, (trace.block_kinds + 1) / trace.num_blocks)
    return _START_S + _OPERATOR_S * operators * share


def choose_by_gain(trace: Trace, eager: Plan, compiled: Plan) -> Decision[str]:
    """Whether what compiling is predicted to save over the whole job repays it."""
    cost = compile_seconds(trace)
    how = (
        f"{trace.block_kinds + 1} of {trace.num_blocks} blocks"
        if trace.block_kinds
        else "the whole model"
    )
    costs = f"compiling takes {format_seconds(cost)} ({how}; less from the second start on)"
    if fits_for_sure(eager) and not fits_for_sure(compiled):
        sizes = [format_bytes(plan.predicted.memory_bytes.value or 0) for plan in (compiled, eager)]
        return Decision("off", f"auto: {sizes[0]} compiled may not fit, {sizes[1]} without it do")
    before, after = eager.predicted.step_s.value, compiled.predicted.step_s.value
    if before is None or after is None:
        return Decision("off", "auto: the time of a step is not predicted; compile=on tries it")
    steps = compiled.batch.total_steps.value
    saved = steps * (before - after)
    times = f"a step takes {format_seconds(after)} compiled and {format_seconds(before)} without"
    if before < _WORTH * after:
        return Decision("off", f"auto: {times}; {costs}")
    if saved <= cost:
        return Decision(
            "off",
            f"auto: {times}, over {steps:,} steps {format_seconds(saved)} are saved; {costs}, "
            "which the job is too short to repay",
        )
    return Decision(
        "on", f"auto: {times}, over {steps:,} steps {format_seconds(saved)} are saved; {costs}"
    )


def with_other(chosen: Plan, other: Plan) -> Plan:
    """The chosen plan with the other one among what was considered."""
    rate, now = other.predicted.samples_per_s.value, chosen.predicted.samples_per_s.value
    why = "less simple" if other.execution.compile.value == "on" else "slower"
    if rate is not None and now is not None:
        share = 100 * (rate / now - 1)
        why = f"{abs(share):.0f} % {'faster' if share > 0 else 'slower'}"
        why += ", but compiling is not repaid" if share > 0 else ""
    entry = Alternative(
        choice=f"compile={other.execution.compile.value}",
        samples_per_s=rate,
        memory_bytes=other.predicted.memory_bytes.value,
        why_not=why,
    )
    return chosen.replace(alternatives=[*chosen.predicted.alternatives, entry])
