"""What is wrong, said so that a person can act on it: the one error type of the package.

A `Finding` says what, why and how to mend it. Job errors, machine checks and post-mortems are all
Findings, printed by one renderer; `UserError` carries them up to the command line.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, Literal, get_args

Severity = Literal["error", "warning", "note"]


class ExitCode(IntEnum):
    """The exit codes of the `phalanx` command."""

    OK = 0
    """Everything went as asked."""
    FAILED = 1
    """The run failed, or findings were reported."""
    USAGE = 2
    """The job file, an option or an override is wrong; nothing was created."""
    MACHINE = 3
    """This machine cannot train."""
    LAUNCH = 4
    """The ranks could not be started."""
    STOPPED = 75
    """Stopped early with a checkpoint saved: safe to requeue (EX_TEMPFAIL of sysexits.h)."""
    CRASH_LOOP = 93
    """Ranks died or hung again and again without a newer checkpoint: not to be requeued."""
    INTERRUPTED = 130
    """Interrupted by a second Ctrl-C (128 + SIGINT)."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing a person should know: what it is, why it is so, what to do about it."""

    slug: str
    """Stable name, shown in brackets and listed in docs/reference/findings.md."""
    what: str
    """The fact in the user's words, with both numbers."""
    why: str
    """Where each value came from."""
    fix: str
    """A line that can be pasted, or the choices there are."""
    severity: Severity = "error"

    def __post_init__(self) -> None:
        # Recipes make Findings too: one that is not all text must still reach its reader.
        for name in ("slug", "what", "why", "fix"):
            object.__setattr__(self, name, str(getattr(self, name)))
        if self.severity not in get_args(Severity):
            object.__setattr__(self, "severity", "error")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Finding:
        return cls(**data)


class UserError(Exception):
    """Problems the user can mend; `cli.main` prints every Finding and exits with `exit_code`."""

    def __init__(
        self, findings: Finding | Iterable[Finding], *, exit_code: ExitCode = ExitCode.USAGE
    ) -> None:
        self.findings = [findings] if isinstance(findings, Finding) else list(findings)
        self.exit_code = exit_code
        super().__init__("; ".join(f"[{f.slug}] {f.what}" for f in self.findings))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_user_error, (self.findings, self.exit_code)


def _rebuild_user_error(findings: list[Finding], exit_code: ExitCode) -> UserError:
    return UserError(findings, exit_code=exit_code)


def errors_of(findings: Iterable[Finding]) -> list[Finding]:
    """The Findings that stop a command, without the warnings and notes."""
    return [f for f in findings if f.severity == "error"]


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """` (did you mean `lr`?)` for the nearest choice, or nothing when none is near."""
    from difflib import get_close_matches

    by_lower = {choice.lower(): choice for choice in choices}
    near = get_close_matches(word.lower(), list(by_lower), n=1, cutoff=0.6)
    return f" (did you mean `{by_lower[near[0]]}`?)" if near else ""


def name_some(names: Sequence[str], most: int = 3) -> str:
    """Return the first names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def format_bytes(count: int) -> str:
    """`20.0 GiB`, `512.0 MiB`, `17 bytes`: bytes inside, this in messages."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if count >= 1024**power:
            return f"{count / 1024**power:.1f} {unit}"
    return f"{count} bytes"


def printable(text: str) -> str:
    """A text of somebody else's as it can be shown: what would move a terminal's cursor or change
    its colours is a blank."""
    return "".join(c if c.isprintable() or c == "\t" else " " for c in text)


def signal_name(number: int) -> str:
    """`SIGKILL`; real-time signals but the first and last have only their number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def format_seconds(seconds: float) -> str:
    """`850 us`, `31.2 ms`, `4.7 s`, `47 s`, `3 min 20 s`, `2 h 5 min`, `12 days 3 h`."""
    if seconds == 0:
        return "0 s"
    if seconds < 0.9995:
        number, unit = (seconds * 1e6, "us") if seconds < 0.9995e-3 else (seconds * 1e3, "ms")
        return f"{number:.3g} {unit}"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 48 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400:,} days {whole % 86400 // 3600} h"


def short_path(path: Path) -> Path:
    """Return the path as a person would type it in the current folder."""
    try:
        return path.relative_to(Path.cwd())
    except ValueError:
        return path
