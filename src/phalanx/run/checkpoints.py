"""Checkpoint folders on disk: manifest, checksums, one rename, `latest` and `best`, retention.

    checkpoints/checkpoint-120/
      manifest.json            every file with size and sha256; written last
      state.json               position, counters, what the run must still be to resume; job,
                               plan and figures, so that the folder works alone
      model.safetensors        weights, without what is frozen and lies in files of its own
      optimizer.safetensors
      ema/model.safetensors    the averaged weights, when the job asks for an average
      ...                      what the recipe writes beside them for other tools
    checkpoints/latest -> checkpoint-120      checkpoints/best -> checkpoint-96

Tensors are the engine's business; this module knows files and does not import torch.
"""

from __future__ import annotations

import errno
import hashlib
import json
import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.errors import ExitCode, Finding, format_bytes
from phalanx.run.attempt import Attempt, RunTakenError
from phalanx.run.directory import new_folder, swap_link, sync_folder, write_atomic
from phalanx.run.guards import find_inside
from phalanx.run.reading import read_json

SCHEMA_VERSION = 1
STATE_FILE = "state.json"
MANIFEST_FILE = "manifest.json"
MODEL_FILE = "model.safetensors"
EMA_FILE = f"ema/{MODEL_FILE}"
_NAME = re.compile(r"^checkpoint-(\d+)$")
_LEFT_OVER = re.compile(r"^\.(checkpoint-\d+|latest|best)\..*\.(tmp|old)$")
_SPARE_BYTES = 2**20  # for state, manifest and what else is small

_TRANSIENT = {errno.EIO, errno.ESTALE, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT, errno.EBUSY}


@dataclass(frozen=True)
class SavedCheckpoint:
    """A checkpoint folder that was verified against its manifest."""

    path: Path
    step: int
    state: dict[str, Any]


def checkpoint_name(step: int) -> str:
    return f"checkpoint-{step}"


@contextmanager
def new_checkpoint(folder: Path, step: int, attempt: Attempt | None = None) -> Iterator[Path]:
    """A temporary folder to write into; on success it becomes `checkpoint-STEP` in one rename. The
    same step may be saved again (stopped right after a regular save): the new one is as good.

    Raises RunTakenError, and changes nothing, if the run belongs to a newer attempt than the
    writer's."""
    final = folder / checkpoint_name(step)
    _check_owner(final, attempt)
    with new_folder(final) as temporary:
        yield temporary
        _write_manifest(temporary, step, attempt)
        _check_owner(final, attempt)


def _check_owner(final: Path, attempt: Attempt | None) -> None:
    if attempt is None:
        return
    attempt.check(final.parent.parent)
    there = _attempt_of(final)
    if there > attempt.number:
        raise RunTakenError(_of_newer(final, attempt.number, there), exit_code=ExitCode.FAILED)


def _attempt_of(path: Path) -> int:
    """The attempt that wrote a checkpoint; -1 where that is not recorded."""
    number = read_json(path / MANIFEST_FILE).get("attempt")
    return number if isinstance(number, int) else -1


def _write_manifest(folder: Path, step: int, attempt: Attempt | None) -> None:
    files = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        files[path.relative_to(folder).as_posix()] = {
            "bytes": path.stat().st_size,
            "sha256": digest,
        }
    manifest = {"schema_version": SCHEMA_VERSION, "step": step, "files": files}
    if attempt is not None:
        manifest |= {"run": attempt.run, "attempt": attempt.number}
    write_atomic(folder / MANIFEST_FILE, json.dumps(manifest, indent=2))


def is_transient(error: BaseException) -> bool:
    """Whether an error of a file system may be gone when the same is tried again: a hiccup of a
    network or a server, not a full or a read-only disk."""
    return isinstance(error, OSError) and error.errno in _TRANSIENT


def check_room(folder: Path, wanted: int) -> None:
    """Raise ENOSPC before anything is written where it cannot fit."""
    free = shutil.disk_usage(folder).free
    if wanted + _SPARE_BYTES > free:
        raise OSError(
            errno.ENOSPC,
            f"it takes {format_bytes(wanted + _SPARE_BYTES)} and {format_bytes(free)} are free",
            str(folder.parent),
        )


def verify_checkpoint(path: Path) -> Finding | None:
    """What is wrong with a checkpoint folder, or None when every byte is as it was written."""
    why = _find_damage(path)
    if why is None:
        return None
    return Finding(
        slug="checkpoint-damaged",
        what=f"the checkpoint `{path}` is damaged and is not loaded",
        why=why,
        fix=f"nothing to do: the next older good one is used; `rm -r {path}` frees its space",
        severity="warning",
    )


def _find_damage(path: Path) -> str | None:
    try:
        manifest = json.loads((path / MANIFEST_FILE).read_text(encoding="utf-8"))
        files = {
            str(name): (int(facts["bytes"]), str(facts["sha256"]))
            for name, facts in manifest["files"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"its manifest cannot be read: {type(error).__name__}: {error}"
    if manifest.get("schema_version") != SCHEMA_VERSION:
        return f"its format is {manifest.get('schema_version')}, known is {SCHEMA_VERSION}"
    if STATE_FILE not in files:
        return f"its manifest does not name `{STATE_FILE}`"
    named = _NAME.match(path.name)
    if named is not None and manifest.get("step") != int(named[1]):
        return f"its manifest is of step {manifest.get('step')}, its folder says {named[1]}"
    for name, (expected, checksum) in files.items():
        file_path = find_inside(path, name)
        if file_path is None:
            return f"its manifest names `{name}`, which is not a file in this folder"
        try:
            if not file_path.is_file():
                return f"`{name}` is missing"
            size = file_path.stat().st_size
            if size != expected:
                return f"`{name}` has {size} bytes, the manifest says {expected}"
            with file_path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != checksum:
                    return f"the bytes of `{name}` differ from their checksum"
        except OSError as error:
            return f"`{name}` cannot be read: {type(error).__name__}: {error}"
    return _find_other_step(path, manifest)


def _find_other_step(path: Path, manifest: dict[str, Any]) -> str | None:
    try:
        step = json.loads((path / STATE_FILE).read_text(encoding="utf-8"))["step"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        return f"`{STATE_FILE}` cannot be read: {type(error).__name__}: {error}"
    if step != manifest.get("step"):
        return f"`{STATE_FILE}` is of step {step}, the manifest of step {manifest.get('step')}"
    return None


def list_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """(step, path) of every finished checkpoint, newest first."""
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        if (match := _NAME.match(path.name)) and not path.is_symlink():
            found.append((int(match[1]), path))
    return sorted(found, reverse=True)


def open_checkpoint(path: Path) -> tuple[SavedCheckpoint | None, Finding | None]:
    """One checkpoint, verified."""
    if problem := verify_checkpoint(path):
        return None, problem
    state = json.loads((path / STATE_FILE).read_text(encoding="utf-8"))
    return SavedCheckpoint(path.resolve(), int(state["step"]), state), None


def latest_good(folder: Path) -> tuple[SavedCheckpoint | None, list[Finding]]:
    """The newest checkpoint that verifies, and a Finding about each newer one that does not."""
    problems: list[Finding] = []
    for _, path in list_checkpoints(folder):
        saved, problem = open_checkpoint(path)
        if saved is not None:
            return saved, problems
        assert problem is not None
        problems.append(problem)
    return None, problems


def best_good(folder: Path) -> tuple[SavedCheckpoint | None, list[Finding]]:
    """The best checkpoint if there is one and it verifies, else the newest that does."""
    best = folder / "best"
    problem = None
    if best.exists() and best.resolve().parent == folder.resolve():
        saved, problem = open_checkpoint(best.resolve())
        if saved is not None:
            return saved, []
    newest, problems = latest_good(folder)
    if problem is not None and problem not in problems:
        problems.insert(0, problem)
    return newest, problems


def publish(
    folder: Path, step: int, *, is_best: bool, keep: int, best_steps: Collection[int] = ()
) -> Finding | None:
    """Point `latest` (and `best`) at a saved checkpoint, then remove what is no longer needed: all
    but the `keep` newest, the best, and those of `best_steps`.

    The old ones go only after the new one verifies; otherwise nothing changes and the Finding says
    why. The same if a checkpoint of a newer attempt is there. A newer one that verifies stays, and
    `latest` with it; newer ones that are damaged (the run went back behind them) do not count and
    go."""
    name = checkpoint_name(step)
    if problem := verify_checkpoint(folder / name):
        return problem
    mine, there = _attempt_of(folder / name), list_checkpoints(folder)
    for _, path in there:
        if (other := _attempt_of(path)) > mine:
            return _of_newer(path, mine, other)
    newer = [path for number, path in there if number > step and verify_checkpoint(path) is None]
    if not newer:
        swap_link(folder / "latest", name)
    if is_best:
        swap_link(folder / "best", name)
    sync_folder(folder)
    best = (folder / "best").resolve().name
    kept = [*newer, *[path for number, path in there if number <= step][:keep]]
    for number, path in there:
        if path not in kept and path.name != best and number not in best_steps:
            shutil.rmtree(path, ignore_errors=True)
    return _behind(newer[0]) if newer else None


def _of_newer(path: Path, mine: int, other: int) -> Finding:
    return Finding(
        slug="checkpoint-outdated",
        what=f"an older attempt saved beside `{path}`: nothing was published or removed",
        why=f"`{path.name}` is of attempt {other}, the one just saved of attempt {mine}",
        fix="nothing to do: the newer attempt continues the run",
        severity="warning",
    )


def _behind(newer: Path) -> Finding:
    return Finding(
        slug="checkpoint-behind",
        what=f"what is saved now is older than `{newer.name}`, which verifies: that one stays, and "
        "`latest` with it",
        why=f"the run went back behind `{newer}`, which did not verify when it was resumed",
        fix=f"to resume from the older ones, move it away first: `mv {newer} ELSEWHERE`",
        severity="warning",
    )


def tidy(folder: Path) -> None:
    """Remove what a killed writer has left behind. Only while nobody writes: a rank calls it before
    its first step, in a run that its supervisor holds."""
    for path in list(folder.iterdir()) if folder.is_dir() else ():
        match = _LEFT_OVER.match(path.name)
        if match is None:
            continue
        if path.is_symlink() or path.is_file():
            path.unlink(missing_ok=True)
        elif match[2] == "old" and not (folder / match[1]).exists():
            path.rename(folder / match[1])  # killed between the two renames of a second saving
        else:
            shutil.rmtree(path, ignore_errors=True)


def folder_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
