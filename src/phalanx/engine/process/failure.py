"""An exception as the outcome of a rank: Findings a person can act on, exit code, where it was."""

from __future__ import annotations

import re
import traceback

from phalanx.engine.process.out_of_memory import find_shortage, place_of, shortage_finding
from phalanx.errors import ExitCode, Finding, UserError
from phalanx.run.directory import RunDirectory
from phalanx.run.event_kinds import Outcome

# gloo and NCCL, of a peer that is gone.
_LOST = re.compile(
    r"Connection (closed|reset) by peer|Connection refused|Broken pipe|No route to host"
    r"|Timed out waiting \d+ms for (send|recv) operation|Socket Timeout|Gloo connectFullMesh failed"
    r"|remote process exited or there was a network error|[Cc]onnection was likely closed"
    r"|NCCL communicator was aborted|Application timeout caused pair closure"
)


def describe_failure(error: Exception, *, rank: int, device: str, run: RunDirectory) -> Outcome:
    """The outcome event of a rank that failed; the traceback goes into its log, whole."""
    phase, step = place_of(error)
    exit_code = ExitCode.FAILED
    shortage = None
    if isinstance(error, UserError):
        findings, exit_code = error.findings, error.exit_code
    else:
        traceback.print_exception(error)
        shortage = find_shortage(error, device)
        if _from_outside(error) == "loader":
            findings = [_loader_finding(error, rank, run)]
        elif shortage is None:
            findings = [_crash_finding(error, rank, run)]
        else:
            where = f"the {phase}" if step is None else f"the {phase} after {step} steps"
            log = str(run.log_file(rank))
            findings = [shortage_finding(shortage, rank=rank, where=where, log=log)]
    return Outcome(
        status="failed",
        step=step,
        phase=phase,
        from_outside=_from_outside(error),
        memory=shortage,
        reason=findings[0].what,
        findings=findings,
        exit_code=int(exit_code),
    )


def _from_outside(error: BaseException) -> str | None:
    """What ended this rank from outside. A loader process that was killed takes its rank along; a
    rank that is gone, or a cable, those that wait for it."""
    text = str(error)
    if "DataLoader worker" in text and ("killed by signal" in text or "exited unexpec" in text):
        return "loader"
    is_lost = isinstance(error, RuntimeError) and _LOST.search(text)
    return "connection" if is_lost else None


def _loader_finding(error: Exception, rank: int, run: RunDirectory) -> Finding:
    return Finding(
        slug="loader-killed",
        what=f"rank {rank} lost a loader process: {str(error)[:400]}",
        why="by the kernel when host memory or /dev/shm ran out, or by somebody's `kill`",
        fix="fewer loader processes (`loader.workers=1`) or less held ready (`loader.prefetch=1`); "
        f"`less {run.log_file(rank)}`",
    )


def own_line(error: BaseException) -> str:
    """Where an error comes from: the last line outside of libraries is the one its author can
    mend."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "site-packages" not in f.filename and "<frozen" not in f.filename]
    where = own[-1] if own else frames[-1]
    return f"{where.filename}:{where.lineno} in {where.name}: {where.line}"


def _crash_finding(error: Exception, rank: int, run: RunDirectory) -> Finding:
    return Finding(
        slug="rank-crashed",
        what=f"rank {rank} failed: {type(error).__name__}: {str(error)[:800]}",
        why=own_line(error),
        fix=f"read the whole traceback: `less {run.log_file(rank)}`",
    )
