"""What is wrong with a machine: pure functions from a `Machine` to Findings, no I/O.

The parts are in host_checks.py, torch_checks.py and gpu_checks.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from phalanx.errors import Finding, errors_of
from phalanx.machine.facts import Machine
from phalanx.machine.gpu_checks import GPU_CHECKS
from phalanx.machine.host_checks import HOST_CHECKS
from phalanx.machine.torch_checks import TORCH_CHECKS

Check = Callable[[Machine], Iterable[Finding]]

CHECKS: tuple[Check, ...] = (*HOST_CHECKS, *TORCH_CHECKS, *GPU_CHECKS)
"""Every check, in the order in which their Findings are best read."""

_RANK = {"error": 0, "warning": 1, "note": 2}


def check_machine(machine: Machine, *, checks: Sequence[Check] = CHECKS) -> list[Finding]:
    """All that is wrong with the machine, errors first; a check that fails is a Finding too."""
    findings: list[Finding] = []
    for check in checks:
        try:
            findings += check(machine)
        except Exception as error:
            findings.append(
                Finding(
                    slug="check-broken",
                    severity="warning",
                    what=f"the check `{check.__name__}` failed and was left out",
                    why=f"{type(error).__name__}: {error}",
                    fix="report it with the output of `phalanx check --json`",
                )
            )
    return sorted(findings, key=lambda finding: _RANK[finding.severity])


def cannot_train(machine: Machine) -> list[Finding]:
    """The Findings for which training must not start here (exit code 3); empty when it may.

    A machine without a GPU can train. One whose GPUs torch cannot use is refused: it would
    quietly train on the CPU.
    """
    return errors_of(check_machine(machine))
