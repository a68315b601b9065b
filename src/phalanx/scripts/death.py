"""How a rank of a launched script ended, as far as its exit code and its last traceback say. Why it
did is asked of the table of causes (post_mortem.py)."""

from __future__ import annotations

from phalanx.diagnose.logs import LogLine, frames, last_error
from phalanx.errors import Finding, signal_name
from phalanx.run.directory import RunDirectory
from phalanx.run.launching import RankDeath
from phalanx.supervise.rank_group import kill_reason


def describe_death(death: RankDeath, run: RunDirectory) -> Finding:
    """Which rank, how, and the last line of its traceback."""
    log = run.log_file(death.rank)
    tail = f"read its last lines: `tail {log}`"
    if death.exit_code < 0:
        name = signal_name(-death.exit_code)
        return Finding(
            slug="rank-killed",
            what=f"rank {death.rank} was killed by {name}",
            why=kill_reason(name),
            fix=tail,
        )
    printed = [LogLine.of(log.name, number, text) for number, text in enumerate(death.lines, 1)]
    error, named = last_error(printed), frames(printed)
    where = "it printed no traceback"
    if named:
        last = named[-1]
        where = f'its last traceback ends at "{last.file}", line {last.line}, in {last.name}'
    return Finding(
        slug="script-failed",
        what=f"rank {death.rank} left with exit code {death.exit_code}"
        + (f": {error.text.strip()}" if error is not None else ""),
        why=where,
        fix=tail,
    )
