"""Which row of the table a rank's end fits, and the lines that say so."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

from phalanx.diagnose.causes import SUBJECTS
from phalanx.diagnose.causes.row import Cause, Grade
from phalanx.diagnose.logs import LogLine, last_traceback, outside_tracebacks
from phalanx.diagnose.scene import RankEnd

_LAST_LINES = 60  # where a process without a traceback says why it ends
_BEFORE_LINES = 400  # native code may have said it a while before

# Within one rank an exception that says "another one was gone" is told by that, not by its kind.
_WITHIN: tuple[Grade, ...] = ("exact", "symptom", "echo", "generic")


@dataclass(frozen=True)
class Match:
    """A row that fits."""

    cause: Cause
    lines: list[LogLine]
    """Evidence, the telling line first; empty when the exit code alone says it."""
    caught: dict[str, str] = field(default_factory=dict)
    """What the patterns' named groups found."""


def best_match(end: RankEnd, facts: dict[str, str], others: Sequence[LogLine] = ()) -> Match | None:
    """The row that says most of how a rank ended; None when none fits. `others` are lines of
    nobody's own, such as NCCL's."""
    regions = _Regions(end, others)
    found: list[tuple[tuple[int, int, int], Match]] = []
    for place, cause in enumerate(all_causes()):
        match = _match(cause, end, facts, regions)
        if match is not None:
            at = regions.place(match.lines[0]) if match.lines else -1
            found.append(((_WITHIN.index(cause.grade), at, place), match))
    return min(found, key=lambda pair: pair[0])[1] if found else None


def says_echo(texts: Sequence[str]) -> bool:
    """Whether the last lines of a rank only say that another one was gone or late."""
    patterns = [p for cause in all_causes() if cause.grade == "echo" for p in cause.any_of]
    return any(_compiled(pattern).search(text) for text in texts for pattern in patterns)


@cache
def all_causes() -> tuple[Cause, ...]:
    return tuple(cause for causes in SUBJECTS.values() for cause in causes)


class _Regions:
    """The parts of a log in which a row may be found."""

    def __init__(self, end: RankEnd, others: Sequence[LogLine]) -> None:
        lines, code = end.lines, end.exit_code
        begin = last_traceback(lines)
        if code in (-9, -15):  # from outside: what it printed last is not the reason
            begin = len(lines)
        elif begin is None or (code is not None and code < 0):
            begin = max(0, len(lines) - _LAST_LINES)
        before = outside_tracebacks(lines[max(0, begin - _BEFORE_LINES) : begin])
        self.end = lines[begin:]
        self.all = [*others, *before, *self.end]
        self._places = {id(line): place for place, line in enumerate(self.all)}

    def of(self, cause: Cause) -> Sequence[LogLine]:
        return self.all if cause.is_said_before and cause.grade != "echo" else self.end

    def place(self, line: LogLine) -> int:
        return self._places.get(id(line), len(self.all))


def _match(cause: Cause, end: RankEnd, facts: dict[str, str], regions: _Regions) -> Match | None:
    if cause.exit_codes and end.exit_code not in cause.exit_codes:
        return None
    if any(name not in facts for name in cause.facts):
        return None
    if cause.grade == "echo" and "peers" not in facts:
        return None
    if not cause.any_of:
        return Match(cause, []) if cause.exit_codes or cause.facts else None
    lines = regions.of(cause)
    if any(_first(pattern, lines) for pattern in cause.none_of):
        return None
    if not all(_first(pattern, lines) for pattern in cause.all_of):
        return None
    hits = [hit for pattern in cause.any_of if (hit := _first(pattern, lines)) is not None]
    if not hits:
        return None
    line, found = hits[0]
    caught = {name: text for name, text in found.groupdict().items() if text}
    return Match(cause, [line], caught)


def _first(pattern: str, lines: Sequence[LogLine]) -> tuple[LogLine, re.Match[str]] | None:
    search = _compiled(pattern).search
    return next(((line, found) for line in lines if (found := search(line.text))), None)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)
