"""Remembers what a recipe answered, so that planning it again takes no process with torch in it.

Plans from memory say so. Where one is trained, the ranks look at the data first, and the recipe is
asked where that has changed; a run that goes on always asks. Then only what compiled code takes is
remembered, which takes seconds to find out: it is the same while the recipe's own operators are. An
answer counts while nothing that can be seen has changed (the recipe's files, its options, the files
and folders they name, what is installed) and for an hour at most, because not everything can be
seen. Whatever goes wrong here, the recipe is asked.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import Any

from phalanx.codec import from_json, to_json
from phalanx.errors import Finding, errors_of
from phalanx.planner.schema.footprint import COMPILED
from phalanx.planner.schema.trace import EAGER, Trace
from phalanx.prepare.trace import Answer, AskTrace
from phalanx.recipe.loading import builtin_recipes, recipe_file, recipe_fingerprint
from phalanx.run.cache import cache_folder
from phalanx.run.directory import write_atomic

_PACKAGE = Path(__file__).parents[1]
LIFE_S = 3600
_KEPT = 64
"""Answers on disk; the oldest go."""
_SEEN = 5000
"""Files and folders looked at in one folder."""


@dataclass(frozen=True)
class _Kept:
    """An answer on disk."""

    made: float
    named: list[list[str]]
    """Texts among the options, with stamps of the files that they name."""
    trace: Trace
    findings: list[Finding]


def remembering(ask: AskTrace, *, is_fresh: bool) -> AskTrace:
    """`ask` that keeps what it is answered, and unless `is_fresh` answers from memory."""

    def asked(spec: str, options: dict[str, Any], precisions: tuple[str, ...] = EAGER) -> Answer:
        key = _key(spec, options, precisions)
        known = _recall(key) if key is not None and not is_fresh else None
        if known is not None:
            return known
        eager = tuple(name for name in precisions if not name.endswith(COMPILED))
        older = _read(key) if key is not None and eager != precisions else None
        trace, findings = ask(spec, options, precisions if older is None else eager)
        if older is not None and trace is not None:
            merged = _with_compiled(trace, older)
            trace, findings = (merged, findings) if merged else ask(spec, options, precisions)
        if key is not None and trace is not None and not errors_of(findings):
            _keep(key, trace, findings)
        return trace, findings

    return asked


def _key(spec: str, options: dict[str, Any], precisions: tuple[str, ...]) -> str | None:
    """What an answer depends on; None where that cannot be told. A recipe may read anything in the
    folder it is asked in; a built-in one reads what its options name."""
    try:
        parts = [
            spec,
            recipe_fingerprint(spec),
            _stamp(recipe_file(spec).parent, ".py"),
            json.dumps(options, sort_keys=True),
            f"precisions: {precisions}",
            "" if spec in builtin_recipes() and not _named(options) else str(Path.cwd()),
            *installed(),
        ]
    except (OSError, ValueError, TypeError):
        return None
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def installed() -> list[str]:
    """What changes with Python, torch, Phalanx, or any package that is added, taken away or
    exchanged: a model may come from one."""
    return [
        platform.python_version(),
        _torch_version(),
        _stamp(_PACKAGE, ".py"),
        str(Path(sysconfig.get_path("purelib")).stat().st_mtime_ns),
    ]


def _read(key: str) -> Trace | None:
    """What was answered, however long ago."""
    kept = _kept(key)
    return kept.trace if kept is not None else None


def _kept(key: str) -> _Kept | None:
    try:
        file = cache_folder("traces") / f"{key}.json"
        return from_json(_Kept, json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None


def _with_compiled(trace: Trace, older: Trace) -> Trace | None:
    """A new answer with the compiled code of an older one; None where the model computes anything
    else by now, because samples are of another size or code is used that nobody looks at."""
    merged: dict[str, Any] = {"compiled_unknown": older.compiled_unknown}
    for name in ("activation_bytes", "checkpointed_bytes", "operators", "checkpointed_operators"):
        now, then = getattr(trace, name), getattr(older, name)
        if any(then.get(kind) != now[kind] for kind in now):
            return None
        merged[name] = then
    return replace(trace, **merged)


def _torch_version() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:
        return ""


def _recall(key: str) -> Answer | None:
    kept = _kept(key)
    if kept is None:
        return None
    age_s = time.time() - kept.made
    if not 0 <= age_s < LIFE_S or kept.named != _named(kept.trace.options):
        return None
    if kept.trace.weights_findings:  # they may have been fetched, to where nobody looks here
        return None
    return kept.trace, [*kept.findings, _from_memory(age_s)]


def _keep(key: str, trace: Trace, findings: list[Finding]) -> None:
    record = to_json(_Kept(time.time(), _named(trace.options), trace, findings))
    try:
        folder = cache_folder("traces")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(folder / f"{key}.json", json.dumps(record))
        files = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
        for old in files[:-_KEPT]:
            old.unlink(missing_ok=True)
    except (OSError, ValueError, TypeError):
        return  # a full or read-only disk: the next plan asks again


def _named(options: Any) -> list[list[str]]:
    """Every text among the options, with a stamp of the file or folder that it names."""
    if isinstance(options, dict):
        return [found for value in options.values() for found in _named(value)]
    if isinstance(options, list):
        return [found for value in options for found in _named(value)]
    if not isinstance(options, str) or not options:
        return []
    try:
        return [[options, _stamp(Path(options).expanduser())]]
    except (OSError, ValueError, RuntimeError):
        return [[options, ""]]


def _stamp(path: Path, suffix: str = "") -> str:
    """Names, sizes and times of a file or of what a folder holds; empty when it is not there."""
    if not path.exists():
        return ""
    digest = hashlib.sha256()
    for found in islice(_files(path), _SEEN):
        if suffix and found.suffix != suffix:
            continue
        about = found.stat()
        digest.update(f"{found}\0{about.st_size}\0{about.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def _files(path: Path) -> Iterator[Path]:
    """A file; or a folder and what it holds, folders inside it last. A folder's time tells of files
    that come and go beyond the limit. Not sorted: the order stays while nothing changes."""
    if path.is_file():
        yield path
        return
    folders = [path]
    for folder in folders:
        yield folder
        with os.scandir(folder) as entries:
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    if entry.is_file():
                        yield Path(entry.path)
                elif entry.name != "__pycache__" and not entry.name.startswith("."):
                    folders.append(Path(entry.path))


def _from_memory(age_s: float) -> Finding:
    minutes = round(age_s / 60)
    ago = f"{minutes} minute{'s' * (minutes != 1)} ago" if minutes else "less than a minute ago"
    return Finding(
        slug="trace-remembered",
        what=f"the recipe was asked {ago}, not now",
        why="its files, its options, the files they name and what is installed are as they were; "
        f"answers are remembered for {LIFE_S // 60} minutes; ranks look at the data themselves",
        fix="phalanx plan --fresh",
        severity="note",
    )
