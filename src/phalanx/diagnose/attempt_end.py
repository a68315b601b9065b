"""How an attempt came to its end, as a person reads it."""

from __future__ import annotations

from dataclasses import dataclass, field

from phalanx.codec import from_json
from phalanx.diagnose.logs import LogLine
from phalanx.errors import Finding

UNKNOWN = "unknown"
SHOWN = 240
"""Characters of a line that are shown."""


@dataclass(frozen=True, kw_only=True)
class Death:
    """How an attempt came to its end."""

    cause: str
    """Name of a row of the table, slug of a Finding that the rank itself gave, or `unknown`."""
    grade: str
    """That of the row; `finding` or `unknown` otherwise."""
    rank: int
    attempt: int
    exit_code: int | None = None
    time_s: float | None = None
    phase: str | None = None
    step: int | None = None
    words: str
    fix: str
    evidence: list[LogLine] = field(default_factory=list)
    peers: list[str] = field(default_factory=list)
    """Last words of the other ranks, one line each."""

    @property
    def is_known(self) -> bool:
        return self.cause != UNKNOWN

    @property
    def place(self) -> str:
        """`rank 1, in step after 120 steps`."""
        where = f", in {self.phase}" if self.phase else ""
        after = f" after {self.step} step{'' if self.step == 1 else 's'}" if self.step else ""
        return f"rank {self.rank}{where}{after}"

    def to_finding(self) -> Finding:
        """Return the Finding about the end of a run: its cause, the evidence and the fix."""
        seen = "; ".join(f"{line}: {line.text.strip()[:SHOWN]}" for line in self.evidence[:3])
        fields = {
            "slug": self.cause,
            "what": f"{self.place}: {self.words}",
            "why": seen or "its exit code says so",
            "fix": self.fix,
        }
        return from_json(Finding, fields)
