"""Whether the kernel has ended processes because memory ran out: counters anybody may read."""

from __future__ import annotations

from pathlib import Path

_OWN_GROUP = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")
_WHOLE_MACHINE = Path("/proc/vmstat")


def count_oom_kills() -> int:
    """Processes the kernel has ended for want of memory: those of our own group of processes where
    it counts them (cgroup 2: a container, a job of Slurm, a session), else of the whole machine
    since it started; 0 where neither is told."""
    count = _read(_own_events())
    return count if count is not None else _read(_WHOLE_MACHINE) or 0


def _own_events() -> Path | None:
    try:
        lines = _OWN_GROUP.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    path = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), None)
    return None if path is None else _GROUPS / path / "memory.events"


def _read(path: Path | None) -> int | None:
    """The count in a file of names and numbers."""
    try:
        text = path.read_text(encoding="utf-8") if path is not None else ""
    except OSError:
        return None
    found = (line.split() for line in text.splitlines() if line.startswith("oom_kill "))
    return next((int(words[1]) for words in found if len(words) == 2 and words[1].isdigit()), None)
