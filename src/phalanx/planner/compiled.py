"""Whether the model is compiled, and what is assumed of compiled code."""

from __future__ import annotations

from collections.abc import Iterable

from phalanx.errors import Finding
from phalanx.job.schema import Job
from phalanx.machine import Machine
from phalanx.planner.operators import Operator
from phalanx.planner.plan import Decision
from phalanx.planner.rates import Rates
from phalanx.planner.timing import Compute, time_operators

# Compiled code starts its kernels from a few lines without autograd and dispatch: its share of the
# host's time for an operator. Not fitted yet.
_HOST_SHARE = 0.1
_MARK = "compiled "
"""Begins the name of an operator in compiled code."""


def as_compiled(operator: Operator) -> Operator:
    """The operator, told from those that are not compiled."""
    return operator._replace(name=_MARK + operator.name)


def time_code(
    operators: Iterable[Operator], micro_batch: int, rates: Rates, precision: str
) -> Compute:
    """Forward and backward of one micro-batch, some or all of it compiled."""
    parts: dict[bool, list[Operator]] = {False: [], True: []}
    for operator in operators:
        name = operator.name.removeprefix(_MARK)  # kernels are told apart by their own names
        parts[name != operator.name].append(operator._replace(name=name))
    eager, compiled = (
        time_operators(parts[kind], micro_batch, rates, precision) for kind in (False, True)
    )
    return Compute(
        eager.forward_s + compiled.forward_s,
        eager.backward_s + compiled.backward_s,
        eager.host_s + _HOST_SHARE * compiled.host_s,
    )


def choose_compile(
    job: Job, machine: Machine, *, device: str, strategy: str, is_synced: bool
) -> tuple[Decision[str], list[Finding]]:
    """`on` where the job asks for it and nothing speaks against it."""
    if job.compile == "off":
        return Decision("off", "compile = off"), []
    against = _against(machine, device, strategy, is_synced)
    if against is None:
        return Decision("on", "compile = on"), []
    what, fix = against
    finding = Finding(
        slug="compile-left-off",
        what=f"the model is not compiled: {what}",
        why=f"compile = on; strategy {strategy}, device {device}",
        fix=fix,
        severity="warning",
    )
    return Decision("off", f"compile = on, but {what}"), [finding]


def _against(
    machine: Machine, device: str, strategy: str, is_synced: bool
) -> tuple[str, str] | None:
    """(what speaks against compiling, what to change)."""
    if strategy == "deepspeed":
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
