"""One cause of a run's death as a row of a table: what its text looks like, what it means, what
mends it. The rows are data; `diagnose/matching.py` reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Grade = Literal["exact", "symptom", "echo", "generic"]
"""What a row says of the first cause, the telling ones first:

exact    this is what went wrong
symptom  something behind it went wrong and did not say what; any exact row wins
generic  how the process ended and no more: an exception, a signal
echo     another rank was gone or late before this one failed; any other rank's own cause wins
"""


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A row. Patterns are regular expressions, tried on one line of a log at a time; what their
    named groups catch fills the placeholders of `words` and `fix`, and so do facts of the run
    (`diagnose/facts.py`)."""

    name: str
    """Stable, in kebab-case; the slug of the Finding that a death ends with."""
    any_of: tuple[str, ...] = ()
    """One of these must be there; its line is the evidence."""
    all_of: tuple[str, ...] = ()
    """All of these must be there too."""
    none_of: tuple[str, ...] = ()
    """None of these may be there."""
    exit_codes: tuple[int, ...] = ()
    """The rank must have ended with one of these; negative: a signal."""
    facts: tuple[str, ...] = ()
    """Facts of the run that must hold, by name."""
    grade: Grade = "exact"
    is_said_before: bool = False
    """Whether the text comes before the last traceback, or without one: native code, the kernel
    and schedulers print whenever they like. An exception counts only where it ended the rank."""
    words: str
    """The cause in plain words."""
    fix: str
    """What to paste, or to do, for a job of Phalanx."""
    script_fix: str = ""
    """The same for a launched script, where that differs."""
    text: str
    """What is really printed: an example, which the tests must find."""
    source: str
    """Where that text comes from; `failure 7` is the seventh of the known texts in the tests."""
