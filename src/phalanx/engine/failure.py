"""An exception as the outcome of a rank: Findings a person can act on, exit code, where it was."""

from __future__ import annotations

import traceback
from typing import Any

from phalanx.engine.memory import find_shortage, place_of, shortage_finding
from phalanx.errors import ExitCode, Finding, UserError
from phalanx.run.directory import RunDirectory


def describe_failure(
    error: Exception, *, rank: int, device: str, run: RunDirectory
) -> dict[str, Any]:
    """The outcome event of a rank that failed; the traceback goes into its log, whole."""
    phase, step = place_of(error)
    exit_code = ExitCode.FAILED
    shortage = None
    if isinstance(error, UserError):
        findings, exit_code = error.findings, error.exit_code
    else:
        traceback.print_exception(error)
        shortage = find_shortage(error, device)
        if shortage is None:
            findings = [_crash_finding(error, rank, run)]
        else:
            where = f"the {phase}" if step is None else f"the {phase} after {step} steps"
            log = str(run.log_file(rank))
            findings = [shortage_finding(shortage, rank=rank, where=where, log=log)]
    return {
        "status": "failed",
        "step": step,
        "phase": phase,
        "memory": shortage.to_json() if shortage is not None else None,
        "reason": findings[0].what,
        "findings": [finding.to_json() for finding in findings],
        "exit_code": int(exit_code),
    }


def _crash_finding(error: Exception, rank: int, run: RunDirectory) -> Finding:
    frames = traceback.extract_tb(error.__traceback__)
    # The last line outside of libraries is the one its author can mend.
    own = [f for f in frames if "site-packages" not in f.filename and "<frozen" not in f.filename]
    where = own[-1] if own else frames[-1]
    return Finding(
        slug="rank-crashed",
        what=f"rank {rank} failed: {type(error).__name__}: {str(error)[:800]}",
        why=f"{where.filename}:{where.lineno} in {where.name}: {where.line}",
        fix=f"read the whole traceback: `less {run.log_file(rank)}`",
    )
