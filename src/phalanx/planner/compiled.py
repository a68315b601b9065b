"""Whether the model is compiled, and what is assumed of compiled code."""

from __future__ import annotations

from phalanx.errors import Finding
from phalanx.job.schema import Job
from phalanx.machine import Machine
from phalanx.planner.plan import Decision


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
