"""What a run knows of itself, by the names that causes use in their words and fixes."""

from __future__ import annotations

import re
import shlex
import signal
from pathlib import Path
from typing import Any

from phalanx.diagnose.logs import crash_frame, last_error, last_traceback, own_frame
from phalanx.diagnose.scene import RankEnd, Scene
from phalanx.errors import signal_name
from phalanx.run.directory import LATEST
from phalanx.run.event_kinds import Step, Usage

_FULL = 0.85  # of the host's memory: the kernel needs the rest for itself and its caches
_SAMPLE = re.compile(r"phalanx: while fetching (?P<which>samples? .+)")
_INDICES = re.compile(r"Parameter indices which did not receive grad for rank \d+: (?P<all>[\d ]+)")
_NAMES = re.compile(r"Parameters which did not receive grad for rank \d+: (?P<all>.+)")
_NATIVE = re.compile(
    r"(terminate called after throwing.*|what\(\): .*|Fatal Python error: .*|.*: Assertion .* "
    r"failed\.|\*\*\* .* detected.*|free\(\): .*|corrupted .*|malloc\(\): .*)"
)


def facts_of_run(scene: Scene) -> dict[str, str]:
    """Of the whole run: sizes of the plan, and what starts it again."""
    shown = _shown(scene.run.path)
    facts: dict[str, Any] = {
        "run": shown,
        "logs": f"{shown}/logs",
        "again": _again(scene),
        "script": _script(scene),
        "python": _python(scene),
        "ranks": scene.planned("ranks") or scene.world,
        "micro_batch": scene.planned("micro_batch_size"),
        "half_micro_batch": _half(scene.planned("micro_batch_size")),
        "half_workers": _half(scene.planned("workers"), least=0),
        "precision": scene.planned("precision"),
    }
    rate, timeout = scene.planned("lr"), scene.planned("comm_timeout_s")
    if isinstance(rate, int | float):
        facts["lr_tenth"] = f"{rate / 10:.3g}"
    if isinstance(timeout, int | float):
        facts["double_timeout"] = f"{2 * timeout:g}"
    return {name: str(value) for name, value in facts.items() if value is not None}


def facts_of_end(scene: Scene, end: RankEnd) -> dict[str, str]:
    """Of one rank's end; only what is known."""
    begin = last_traceback(end.lines)
    code = end.exit_code or 0
    is_killed = code < 0  # what it caught before is its own
    block = end.lines[begin:] if begin is not None and not is_killed else []
    error, frame, crash = last_error(block), own_frame(block), crash_frame(end.lines)
    texts = [line.text for line in end.lines[-400:]]
    facts: dict[str, Any] = {
        "rank": end.rank,
        "peers": "yes" if scene.world > 1 else None,
        "log": f"{_shown(scene.run.path)}/logs/rank-{end.rank}.log",
        "exit_code": end.exit_code,
        "signal": signal_name(-code) if is_killed else None,
        "last_error": error.text.strip()[:300] if error is not None else None,
        "frame": str(frame) if frame is not None else None,
        "sample": _found(_SAMPLE, texts, "which"),
        "native": _found(_NATIVE, texts, 0),
        "crash_frame": f"it was at {crash}" if crash is not None else None,
        "oom_kills": end.oom_kills or None,
        "memory_full": _memory_full(scene),
        "memory_said": "the kernel counted no kill for want of memory meanwhile"
        if end.exit_code == -signal.SIGKILL and end.oom_kills == 0
        else None,
    }
    unused = _found(_NAMES, texts, "all") or _found(_INDICES, texts, "all")
    facts["indices"] = f": {unused.strip()} (numbers count model.parameters())" if unused else ""
    if not end.has_outcome and not scene.is_script and begin is None and end.exit_code is not None:
        facts["left_silently"] = "yes" if end.exit_code >= 0 else None
    return {name: str(value) for name, value in facts.items() if value is not None}


def _found(pattern: re.Pattern[str], texts: list[str], group: str | int) -> str | None:
    found = next((match for text in reversed(texts) if (match := pattern.search(text))), None)
    return str(found[group]) if found else None


def _memory_full(scene: Scene) -> str | None:
    """`93 %` when the ranks of this machine last held so much of its memory together."""
    total = (scene.machine.get("memory") or {}).get("total_bytes")
    is_cpu = scene.planned("device") == "cpu"
    newest: dict[int | str, int] = {}
    for event in scene.events:
        match event.body:
            case Usage() as usage:
                newest[usage.rank] = usage.memory_bytes
            case Step(memory_bytes=held) if is_cpu and held is not None:
                newest[event.writer] = held
    if not newest or not isinstance(total, int) or total <= 0:
        return None
    ranks = 1 if any(isinstance(key, int) for key in newest) else scene.world
    share = sum(newest.values()) * ranks / total
    return f"{share:.0%}" if share > _FULL else None


def _half(value: Any, least: int = 1) -> int | None:
    return max(least, value // 2) if isinstance(value, int) else None


def _again(scene: Scene) -> str:
    """What goes on with the run, or starts it anew."""
    if not scene.is_script and (scene.run.checkpoints / LATEST).exists():
        return f"phalanx train --resume {shlex.quote(_shown(scene.run.path))}"
    program, *words = [str(word) for word in scene.source.get("command") or ("",)]
    if words and Path(program).name in ("phalanx", "__main__.py"):
        return shlex.join(["phalanx", *words])
    return "phalanx launch SCRIPT" if scene.is_script else "phalanx train JOB"


def _script(scene: Scene) -> str:
    words = [str(word) for word in scene.launched.get("command") or ()]
    return next((word for word in words if word.endswith(".py")), "SCRIPT")


def _python(scene: Scene) -> str:
    words = scene.launched.get("command") or ["python"]
    return str(words[0])


def _shown(path: Path) -> str:
    """As a person would type it from here."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
