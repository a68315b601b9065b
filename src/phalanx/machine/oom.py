"""Whether the kernel has ended processes because memory ran out: a counter anybody may read."""

from __future__ import annotations

from pathlib import Path

_COUNTERS = Path("/proc/vmstat")


def count_oom_kills() -> int:
    """Processes the kernel has ended for want of memory since this machine started, those of
    containers included; 0 where that is not told."""
    try:
        text = _COUNTERS.read_text(encoding="utf-8")
    except OSError:
        return 0
    found = (line.split() for line in text.splitlines() if line.startswith("oom_kill "))
    return next((int(words[1]) for words in found if len(words) == 2 and words[1].isdigit()), 0)
