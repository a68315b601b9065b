"""What a rank printed, line by line with file and number, and where in it the end begins."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_TAIL_BYTES = 2**21  # of a log: a traceback is a few KiB, what came before it rarely matters
_CHUNK = 2**20
_ATTEMPT = re.compile(r"^--- attempt (\d+), pid \d+$")
_TORCH_MARK = re.compile(r"^\[rank\d+\]: ?")  # what torch puts before a traceback in a group
_BEGIN = "Traceback (most recent call last):"
_JOINS = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
# With a comma in a traceback, without one where faulthandler wrote it.
_FRAME = re.compile(r'^\s*File "(?P<file>.+)", line (?P<line>\d+)(,? in (?P<name>.+))?$')
_FATAL = "Fatal Python error: "
_ERROR = re.compile(
    r"^(\w+\.)*\w*(Error|Exception|Interrupt|Exit|Warning|Refused|Failure|Failed|Invalid|Iteration)"
    r"(: |$)"
)
_NOT_OWN = (
    "site-packages",
    "dist-packages",
    "<frozen",
    "lib/python3",
    "<string>",
    str(Path(__file__).parents[1]),
)


@dataclass(frozen=True)
class LogLine:
    """A line of a file of the run."""

    file: str
    """Relative to the run directory."""
    line: int
    """Counted from 1."""
    text: str

    @classmethod
    def of(cls, file: str, number: int, printed: str) -> LogLine:
        """Of a bar its last state, without what torch puts before a rank's lines."""
        text = printed.rstrip("\r").rpartition("\r")[2]
        return cls(file, number, _TORCH_MARK.sub("", text))

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Frame(NamedTuple):
    """A line of code in a traceback."""

    file: str
    line: int
    name: str
    at: LogLine

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.name}"


def read_tail(path: Path, root: Path) -> list[LogLine]:
    """The end of a file with true line numbers; nothing when it cannot be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            start = max(0, size - _TAIL_BYTES)
            file.seek(0)
            before = 0
            while file.tell() < start:
                before += file.read(min(_CHUNK, start - file.tell())).count(b"\n")
            tail = file.read(_TAIL_BYTES)
    except OSError:
        return []
    name = path.relative_to(root).as_posix()
    lines = tail.decode(errors="replace").split("\n")
    return [LogLine.of(name, before + n, text) for n, text in enumerate(lines, 1) if text]


def of_attempt(lines: Sequence[LogLine], attempt: int) -> list[LogLine]:
    """What was printed in one attempt; of a log without marks all of it."""
    marks = [(i, int(found[1])) for i, x in enumerate(lines) if (found := _ATTEMPT.match(x.text))]
    if not marks:
        return list(lines)
    for (start, number), (stop, _) in zip(marks, [*marks[1:], (len(lines), -1)], strict=True):
        if number == attempt:
            return list(lines[start + 1 : stop])
    return []


def last_traceback(lines: Sequence[LogLine]) -> int | None:
    """Where the last exception begins, with those it was raised from; None without one."""
    begins = [i for i, line in enumerate(lines) if _BEGIN in line.text]
    if not begins:
        return None
    first = begins[-1]
    for before in reversed(begins[:-1]):
        between = [line.text.strip() for line in lines[before:first]]
        is_original = lines[first].text.lstrip().startswith("Original ")
        if not (is_original or any(text in _JOINS for text in between)):
            break
        first = before
    return first


def outside_tracebacks(lines: Sequence[LogLine]) -> list[LogLine]:
    """What was printed besides exceptions: one that was not the last had been caught."""
    kept, is_inside = [], False
    for line in lines:
        if _BEGIN in line.text:
            is_inside = True
        elif is_inside:
            # Its lines of code are indented; the line that names it is the last.
            is_inside = line.text.startswith(" ")
        else:
            kept.append(line)
    return kept


def frames(lines: Sequence[LogLine]) -> list[Frame]:
    """Every line of code that tracebacks name, in their order."""
    found = ((line, _FRAME.match(line.text)) for line in lines)
    return [
        Frame(match["file"], int(match["line"]), match["name"] or "?", line)
        for line, match in found
        if match
    ]


def own_frame(lines: Sequence[LogLine]) -> Frame | None:
    """The last line of code that its author can mend; any other where there is none."""
    named = frames(lines)
    own = [frame for frame in named if not any(part in frame.file for part in _NOT_OWN)]
    return own[-1] if own else (named[-1] if named else None)


def crash_frame(lines: Sequence[LogLine]) -> Frame | None:
    """Where Python was when native code crashed, if faulthandler could say so: innermost first."""
    begins = [i for i, line in enumerate(lines) if line.text.startswith(_FATAL)]
    if not begins:
        return None
    named = frames(lines[begins[-1] :])
    own = (frame for frame in named if not any(part in frame.file for part in _NOT_OWN))
    return next(own, named[0] if named else None)


def last_error(lines: Sequence[LogLine]) -> LogLine | None:
    """The line that names the exception: by its name, else what follows the code."""
    named = next((line for line in reversed(lines) if _ERROR.match(line.text)), None)
    if named is not None:
        return named
    begins = [i for i, line in enumerate(lines) if _BEGIN in line.text]
    after = lines[begins[-1] + 1 :] if begins else []
    return next((line for line in after if not line.text.startswith(" ")), None)
