"""How an attempt or a run ended, in words: from what a rank wrote, or from how it died."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from phalanx.errors import ExitCode, Finding, signal_name
from phalanx.run.directory import RunDirectory
from phalanx.run.event_kinds import Outcome
from phalanx.run.launching import RankDeath, Witness
from phalanx.run.reading import read_end
from phalanx.supervise.rank_group import kill_reason

_TAIL_BYTES = 1 << 16
_FATAL = "Fatal Python error"


@dataclass(frozen=True)
class RankEnd:
    """How a rank ended, as it wrote itself."""

    rank: int
    time_s: float
    outcome: Outcome


def of_run(end: Outcome) -> Outcome:
    """Return the outcome of a run that ends as one of its ranks."""
    return replace(end, phase=None, from_outside=None, memory=None)


def from_finding(finding: Finding, exit_code: int = ExitCode.FAILED) -> Outcome:
    return Outcome(
        status="failed",
        step=None,
        reason=finding.what,
        findings=[finding],
        exit_code=int(exit_code),
    )


def stopped(reason: str, exit_code: int, step: int | None = None) -> Outcome:
    return Outcome(
        status="stopped", step=step, reason=reason, findings=[], exit_code=int(exit_code)
    )


def first_failure(ends: Iterable[RankEnd]) -> Outcome | None:
    """The rank that failed first. One that only lost its connection to another is the effect, if
    there is any that failed on its own: clocks of several nodes differ."""
    failed = [end for end in ends if end.outcome.status == "failed"]
    first = min(
        failed,
        key=lambda end: (end.outcome.from_outside == "connection", end.time_s),
        default=None,
    )
    return None if first is None else first.outcome


def left_in_silence(ends: list[RankEnd], deaths: list[RankDeath], world: int) -> RankDeath | None:
    """A rank that went by itself and wrote no outcome: its peers only lost their connection."""
    ended = {death.rank for death in deaths if death.was_ended}
    codes = {death.rank: death.exit_code for death in deaths}
    heard = {end.rank for end in ends}
    silent = [rank for rank in range(world) if rank not in heard and rank not in ended]
    return RankDeath(silent[0], codes.get(silent[0], 0)) if silent else None


def killed(run: RunDirectory, death: RankDeath) -> Outcome:
    """A rank that a signal has ended."""
    name = signal_name(-death.exit_code)
    line = _crash_line(run.log_file(death.rank))
    return from_finding(
        Finding(
            slug="rank-killed",
            what=f"rank {death.rank} was killed by {name}",
            why=kill_reason(name) + (f"; it was at {line}" if line else ""),
            fix=f"read its last lines: `tail {run.log_file(death.rank)}`",
        )
    )


def left(run: RunDirectory, death: RankDeath) -> Outcome:
    """A rank that went without a word."""
    rank, code = death.rank, death.exit_code
    return from_finding(
        Finding(
            slug="rank-exited",
            what=f"rank {rank} left with exit code {code} before the end",
            why="something in the recipe or a library ended the process (sys.exit, os._exit)",
            fix=f"read its last lines: `tail {run.log_file(rank)}`",
        )
    )


def launch_failed(error: BaseException) -> Outcome:
    finding = Finding(
        slug="launch-failed",
        what=f"the ranks were not started, or lost: {error}",
        why="said by the process that imports torch, starts the ranks and watches them",
        fix="phalanx check",
    )
    return from_finding(finding, ExitCode.LAUNCH)


def restart_finding(outcome: Outcome, count: int, limit: int) -> Finding:
    """That the ranks start again, and why they had to."""
    cause = outcome.findings[0]
    return Finding(
        slug="restarted",
        what=f"{outcome.reason}; the ranks start again from the last checkpoint",
        why=f"{cause.why}; restart {count} of max_restarts = {limit} since the last new checkpoint",
        fix=f"nothing to do, max_restarts=0 turns it off; {cause.fix}",
        severity="warning",
    )


def crash_loop(outcome: Outcome, restarts: int, saved: int | None) -> Outcome:
    """The same end again and again: with an exit code of its own, so that no scheduler begins it
    anew."""
    at = "there is none" if saved is None else f"the newest is of step {saved}"
    finding = Finding(
        slug="crash-loop",
        what=f"the ranks died {restarts + 1} times without a newer checkpoint",
        why=f"max_restarts = {restarts} in a row; {at}; the last time: {outcome.reason}",
        fix="mend what ends them (above), then `phalanx train --resume`; if each time was bad "
        "luck, save more often: checkpoint.every",
    )
    findings = [*outcome.findings, finding]
    return replace(outcome, exit_code=int(ExitCode.CRASH_LOOP), findings=findings)


def _crash_line(log: Path) -> str | None:
    """Where a rank was when native code crashed: its last words, if it had any."""
    text = read_end(log, _TAIL_BYTES).decode(errors="replace")
    attempt = text.rpartition("--- attempt ")[2]
    _, found, words = attempt.rpartition(_FATAL)
    return Witness(0, "", words).line if found else None
