"""Why an attempt died: the rank that failed first, the cause by the table, evidence and fix.

Of the ranks that failed, those that only noticed another one's end are passed over; of the others
the first in time is the cause. Where no row fits the answer is `unknown`, with the last lines.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from phalanx.diagnose.attempt_end import SHOWN, UNKNOWN, Death
from phalanx.diagnose.facts import facts_of_end, facts_of_run
from phalanx.diagnose.hang import find_hang
from phalanx.diagnose.logs import LogLine, crash_frame, last_error, last_traceback, own_frame
from phalanx.diagnose.matching import Match, best_match
from phalanx.diagnose.scene import RankEnd, Scene
from phalanx.diagnose.words import fill_fix, fill_words
from phalanx.errors import Finding
from phalanx.run import event_kinds
from phalanx.run.event_kinds import Body, Checkpoint, Evaluate, Outcome, RankStarted, Step

GENERIC_SLUGS = ("rank-crashed", "rank-killed", "rank-exited", "script-failed")
"""Findings that say how a rank ended and not why: a cause of the table says more."""
_LAST_WORDS = 5
_ENQUEUED = re.compile(r"last enqueued NCCL work: (\d+)")


def find_death(scene: Scene, attempt: int) -> Death | None:
    """Why an attempt died; None when no rank of it ended badly."""
    ends = scene.ends(attempt)
    judged = [_judge(scene, end) for end in ends if end.is_bad]
    first = min(judged, key=_Judged.order, default=None)
    hang = find_hang(scene, attempt)
    # Ranks of a group that hung are ended by us, and what they say then is not the cause.
    hung_s = (hang.time_s if hang is not None else None) or 0.0
    if hang is not None and (first is None or (first.end.time_s or hung_s) >= hung_s):
        return hang
    return _describe(scene, attempt, first, judged, ends) if first is not None else None


def explain_end(scene: Scene, attempt: int, findings: list[Finding]) -> list[Finding]:
    """The Findings of a failed run with its cause in the place of one that only says how a rank
    ended. Those that know more stay as they are."""
    if not findings or findings[0].slug not in GENERIC_SLUGS:
        return findings
    death = find_death(scene, attempt)
    if death is None or death.grade in ("finding", "unknown"):
        return findings
    if death.grade != "generic":
        return [death.to_finding(), *findings[1:]]
    if findings[0].slug != "rank-killed" or f"rank {death.rank} " not in findings[0].what:
        return findings
    return [replace(findings[0], why=death.words, fix=death.fix), *findings[1:]]


@dataclass(frozen=True)
class _Judged:
    """A rank that failed, and what its log says of it."""

    end: RankEnd
    match: Match | None
    facts: dict[str, str]

    @property
    def is_echo(self) -> bool:
        if self.end.was_ended and (self.end.exit_code or 0) < 0:
            return True
        if self.match is None:
            return False
        return self.match.cause.grade == "echo" or self.match.cause.name == "ended-from-outside"

    def order(self) -> tuple[bool, bool, float, int, int]:
        """Who failed first: a rank that noticed another's end comes after all others."""
        time_s = self.end.time_s
        return self.is_echo, time_s is None, time_s or 0.0, self.end.order, self.end.rank


def _judge(scene: Scene, end: RankEnd) -> _Judged:
    facts = facts_of_end(scene, end)
    return _Judged(end, best_match(end, facts, _others(scene, end.rank)), facts)


def _others(scene: Scene, rank: int) -> list[LogLine]:
    mine = f"nccl-rank-{rank}."
    return [x for x in scene.other_lines if "nccl-rank-" not in x.file or mine in x.file]


def _describe(
    scene: Scene, attempt: int, first: _Judged, judged: list[_Judged], ends: list[RankEnd]
) -> Death:
    end, match = first.end, first.match
    phase, step = _where(scene, attempt, end)
    known: dict[str, Any] = {
        "rank": end.rank,
        "attempt": attempt,
        "exit_code": end.exit_code,
        "time_s": end.time_s or _last_time(scene, attempt),
        "phase": phase,
        "step": step,
        "peers": [_peer(other) for other in judged if other is not first],
    }
    own = end.finding
    if own is not None and own.slug not in GENERIC_SLUGS:
        lines = match.lines if match is not None else end.lines[-1:]
        return Death(
            cause=own.slug, grade="finding", words=own.what, fix=own.fix, evidence=lines, **known
        )
    if match is None:
        code = end.exit_code
        how = f"left with exit code {code}" if code is not None else "failed"
        words = f"rank {end.rank} {how}; nothing in its log is known to this table"
        fix = f"read what it printed: `less +G {first.facts['log']}`"
        last = end.lines[-_LAST_WORDS:] or scene.death_lines(end.rank)
        return Death(cause=UNKNOWN, grade="unknown", words=words, fix=fix, evidence=last, **known)
    values = {
        "name": match.cause.name,
        **facts_of_run(scene),
        **_silent(ends, judged),
        **first.facts,
        **match.caught,
        **_calls(match),
    }
    cause = match.cause
    fix = cause.script_fix if scene.is_script and cause.script_fix else cause.fix
    return Death(
        cause=cause.name,
        grade=cause.grade,
        words=fill_words(cause.words, values),
        fix=fill_fix(fix, values),
        evidence=_evidence(scene, match, first, judged),
        **known,
    )


def _where(scene: Scene, attempt: int, end: RankEnd) -> tuple[str | None, int | None]:
    """Phase and step: the rank's own word, else what it wrote last."""
    if end.phase is not None:
        return end.phase, end.step
    kinds: tuple[type[Body], ...] = (Step, Evaluate, Checkpoint, RankStarted)
    steps = [event.step for kind in kinds for event in scene.events_of(kind, attempt)]
    known = [step for step in steps if step is not None]
    started = any(start.rank == end.rank for start in scene.of_kind(RankStarted, attempt))
    if scene.is_script:
        return ("step" if known else "start"), max(known, default=None)
    return ("step" if started else "start"), max(known, default=None)


def _last_time(scene: Scene, attempt: int) -> float | None:
    times = [e.time_s for e in scene.events_of(event_kinds.Death, attempt)]
    times = times or [e.time_s for e in scene.events_of(Outcome, attempt)]
    return min(times, default=None)


def _peer(other: _Judged) -> str:
    name = other.match.cause.name if other.match is not None else UNKNOWN
    error = other.facts.get("last_error") or other.facts.get("signal") or ""
    return f"rank {other.end.rank}: {name}" + (f" ({error[:SHOWN]})" if error else "")


def _silent(ends: list[RankEnd], judged: list[_Judged]) -> dict[str, str]:
    """The ranks that said nothing while others waited for them."""
    loud = {other.end.rank for other in judged if other.match is not None and other.is_echo}
    silent = [str(end.rank) for end in ends if end.rank not in loud] or _behind(judged)
    if not silent or not loud:
        return {}
    return {"silent": f"rank{'s' if len(silent) > 1 else ''} {', '.join(silent)}"}


def _behind(judged: list[_Judged]) -> list[str]:
    """Of ranks that all timed out, those that had given NCCL the least to do."""
    given: dict[int, int] = {}
    for other in judged:
        for line in other.end.lines:
            if found := _ENQUEUED.search(line.text):
                given[other.end.rank] = int(found[1])
    least = min(given.values(), default=0)
    behind = [str(rank) for rank, number in given.items() if number == least]
    return behind if len(behind) < len(given) else []


def _calls(match: Match) -> dict[str, str]:
    """What the two ranks of a mismatch were in, in short."""
    short = {}
    for name in ("first", "second"):
        said = match.caught.get(name, "")
        operation = re.search(r"OpType=(\w+)", said)
        shape = re.search(r"TensorShape=\[([\d, ]*)\]", said)
        if operation:
            of = f" of [{shape[1]}]" if shape else ""
            short[f"{name}_call"] = operation[1] + of
    return short


def _evidence(scene: Scene, match: Match, first: _Judged, judged: list[_Judged]) -> list[LogLine]:
    """The telling line, the line that names the exception, where in the code it was."""
    found = list(match.lines)
    is_of_two = match.cause.name == "collective-mismatch"  # each rank has its own call to show
    for other in judged if is_of_two else [first]:
        lines = other.end.lines
        begin = last_traceback(lines)
        if begin is None or ((other.end.exit_code or 0) < 0 and not is_of_two):
            continue
        error, frame = last_error(lines[begin:]), own_frame(lines[begin:])
        if other is first and error is not None:
            found.append(error)
        if frame is not None:
            found += _with_code(lines, frame.at)
    crash = crash_frame(first.end.lines)
    if crash is not None:
        found += _with_code(first.end.lines, crash.at)[:1]
    if not found:
        found = [*first.end.lines[-_LAST_WORDS:], *scene.death_lines(first.end.rank)]
    return list(dict.fromkeys(found))


def _with_code(lines: list[LogLine], at: LogLine) -> list[LogLine]:
    """A line of a traceback and the code below it."""
    below = lines.index(at) + 1
    code = lines[below].text.strip() if below < len(lines) else ""
    return [replace(at, text=f"{at.text.strip()}: {code}" if code else at.text.strip())]
