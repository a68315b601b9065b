"""Demonstrations on disk: arrays that are mapped into memory, and a JSON file that says what they
are. numpy reads and writes them; nothing else is needed.

    meta.json       {"format": "phalanx-demonstrations", "schema_version": 1, "fps": 80,
                     "tasks": [{"name": "reach-v3", "text": "reach the goal"}, ...],
                     "cameras": ["corner"], ...}
    states.npy      float32, steps x numbers of a state
    actions.npy     float32, steps x numbers of an action
    episodes.npy    int64, episodes x 3: first step, number of steps, task
    images-CAMERA.npy   uint8, steps x height x width x 3
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from phalanx.recipe import Finding, UserError, did_you_mean, first_few, new_folder

FORMAT, SCHEMA_VERSION = "phalanx-demonstrations", 1
META_FILE = "meta.json"
_CHECKED = 65_536  # steps looked at together: a block fits into a cache
_NAMED = 5  # places of one kind that are said


@dataclass(frozen=True)
class Task:
    """What the robot is asked to do."""

    name: str
    text: str


@dataclass(frozen=True)
class Episode:
    """One demonstration, in memory."""

    task: int
    states: np.ndarray
    actions: np.ndarray
    images: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Demonstrations:
    """A folder of demonstrations; the arrays are mapped."""

    folder: Path
    meta: dict[str, Any]
    states: np.ndarray
    actions: np.ndarray
    episodes: np.ndarray
    images: dict[str, np.ndarray]

    @property
    def tasks(self) -> list[Task]:
        return [Task(task["name"], task["text"]) for task in self.meta["tasks"]]

    def places(self) -> Iterator[tuple[int, slice]]:
        """Each episode with its steps."""
        for index, (first, length, _) in enumerate(self.episodes.tolist()):
            yield index, slice(first, first + length)


def write_demonstrations(
    folder: Path,
    episodes: Iterator[Episode] | Sequence[Episode],
    tasks: Sequence[Task],
    *,
    about: dict[str, Any],
    is_new: bool = False,
) -> None:
    """Write a folder; it appears whole. Images are written as they come, one episode at a time.
    With `is_new`, nothing is replaced."""
    states, actions, table = [], [], []
    shapes: dict[str, tuple[int, ...]] = {}
    with new_folder(folder, is_new=is_new) as making:
        first = 0
        for episode in episodes:
            length = len(episode.actions)
            states.append(np.asarray(episode.states, np.float32))
            actions.append(np.asarray(episode.actions, np.float32))
            table.append((first, length, episode.task))
            first += length
            for camera, images in episode.images.items():
                shapes[camera] = images.shape[1:]
                with (making / f"{camera}.raw").open("ab") as raw:
                    raw.write(np.ascontiguousarray(images, np.uint8).tobytes())
        for camera, shape in shapes.items():
            _with_header(making / f"{camera}.raw", images_file(making, camera), (first, *shape))
        np.save(making / "states.npy", np.concatenate(states))
        np.save(making / "actions.npy", np.concatenate(actions))
        np.save(making / "episodes.npy", np.array(table, np.int64))
        meta = {
            "format": FORMAT,
            "schema_version": SCHEMA_VERSION,
            "tasks": [{"name": task.name, "text": task.text} for task in tasks],
            "cameras": list(shapes),
            **about,
        }
        (making / META_FILE).write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")


def images_file(folder: Path, camera: str) -> Path:
    return folder / f"images-{camera}.npy"


def _with_header(raw: Path, final: Path, shape: tuple[int, ...]) -> None:
    """Bytes as an .npy file; how many there are is known only once all are written."""
    array = np.lib.format.open_memmap(final, mode="w+", dtype=np.uint8, shape=shape)
    flat = array.reshape(-1)
    block = 64 * 2**20
    with raw.open("rb") as bytes_:
        for start in range(0, flat.size, block):
            part = np.frombuffer(bytes_.read(block), np.uint8)
            flat[start : start + part.size] = part
    array.flush()
    raw.unlink()


def open_demonstrations(folder: Path, cameras: Sequence[str] = ()) -> Demonstrations:
    """Map a folder's arrays; raises UserError with all that is wrong with its files."""
    meta = _read_meta(folder)
    findings: list[Finding] = []
    there = meta.get("cameras") or []
    findings += [_no_camera(folder, camera, there) for camera in cameras if camera not in there]
    names = {"states": 2, "actions": 2, "episodes": 2}
    arrays = {name: _map(folder / f"{name}.npy", dims, findings) for name, dims in names.items()}
    images = {
        camera: _map(images_file(folder, camera), 4, findings)
        for camera in cameras
        if camera in there
    }
    steps = {name: len(arrays[name]) for name in ("states", "actions")} | {
        f"images-{camera}": len(array) for camera, array in images.items()
    }
    if not findings and len(set(steps.values())) != 1:
        findings.append(_unequal(folder, steps))
    if findings:
        raise UserError(findings)
    return Demonstrations(folder, meta, images=images, **arrays)


def check_demonstrations(found: Demonstrations) -> list[Finding]:
    """What is wrong with the numbers: each kind once, with file, episode and step."""
    findings = _check_table(found)
    if findings:
        return findings
    for name, array in (("states", found.states), ("actions", found.actions)):
        findings += _check_finite(found, name, array)
    return findings


def _check_table(found: Demonstrations) -> list[Finding]:
    file, table, steps = found.folder / "episodes.npy", found.episodes, len(found.states)
    if table.shape[1] != 3 or table.dtype.kind not in "iu" or not len(table):
        return [_no_table(file, table)]
    wrong = [
        f"episode {index}: first step {first}, {length} steps, task {task}"
        for index, (first, length, task) in enumerate(table.tolist())
        if first < 0 or length < 1 or first + length > steps or not 0 <= task < len(found.tasks)
    ]
    if not wrong:
        return []
    return [
        Finding(
            slug="policy-episode",
            what=f"{len(wrong):,} of {len(table):,} episodes in `{file}` are broken: "
            f"{first_few(wrong)}",
            why=f"states.npy has {steps:,} steps, meta.json {len(found.tasks)} tasks; a row is "
            "first step, number of steps, task",
            fix=f"collect or convert them again, or remove those rows: np.save('{file}', rows)",
        )
    ]


def _check_finite(found: Demonstrations, name: str, array: np.ndarray) -> list[Finding]:
    bad = [
        start + np.flatnonzero(~np.isfinite(array[start : start + _CHECKED]).all(1))
        for start in range(0, len(array), _CHECKED)
    ]
    steps = np.concatenate(bad) if bad else np.empty(0, np.int64)
    if not len(steps):
        return []
    told = []
    for step in steps[:_NAMED].tolist():
        column = int(np.flatnonzero(~np.isfinite(array[step]))[0])
        told.append(f"{_place(found, step)}, number {column}: {array[step, column]}")
    return [
        Finding(
            slug="policy-not-finite",
            what=f"{len(steps):,} steps of `{found.folder / name}.npy` are not finite: "
            + first_few(told, len(steps)),
            why="a NaN in one sample makes the loss of its whole batch NaN",
            fix="leave those episodes out of episodes.npy, or mend the numbers",
        )
    ]


def _place(found: Demonstrations, step: int) -> str:
    for index, steps in found.places():
        if steps.start <= step < steps.stop:
            return f"episode {index}, step {step - steps.start} (row {step})"
    return f"row {step}"


def is_demonstrations(folder: Path) -> bool:
    return (folder / META_FILE).is_file()


def _read_meta(folder: Path) -> dict[str, Any]:
    file = folder / META_FILE
    try:
        meta: Any = json.loads(file.read_text(encoding="utf-8"))
        is_ours = meta["format"] == FORMAT and meta["schema_version"] == SCHEMA_VERSION
        named = [(str(task["name"]), str(task["text"])) for task in meta["tasks"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(_no_meta(file, f"{type(error).__name__}: {error}")) from error
    if not is_ours or not named:
        said = f"format {meta['format']!r}, schema_version {meta['schema_version']!r}"
        raise UserError(_no_meta(file, f"{said}, {len(named)} tasks"))
    return dict(meta)


def _map(file: Path, dims: int, findings: list[Finding]) -> np.ndarray:
    try:
        array = np.load(file, mmap_mode="r", allow_pickle=False)
        if array.ndim == dims:
            return np.asarray(array)
        problem = f"has {array.ndim} dimensions, {dims} are wanted"
    except (OSError, ValueError, EOFError) as error:
        problem = f"cannot be read: {error}"
    findings.append(
        Finding(
            slug="policy-file",
            what=f"`{file}` {problem}",
            why=f"{META_FILE} beside it says that this is a folder of demonstrations",
            fix="phalanx recipes collect policy --out FOLDER writes one that is whole",
        )
    )
    return np.empty((0,) * dims)


def _no_camera(folder: Path, camera: str, there: Sequence[str]) -> Finding:
    return Finding(
        slug="policy-camera",
        what=f"the data has no camera `{camera}`{did_you_mean(camera, there)}",
        why=f"options.cameras names it; {folder / META_FILE} has {', '.join(there) or 'none'}",
        fix=f"cameras={','.join(there[:1]) or '[]'}, or collect with it: phalanx recipes collect "
        f"policy cameras={camera} --out FOLDER",
    )


def _unequal(folder: Path, steps: dict[str, int]) -> Finding:
    return Finding(
        slug="policy-episode",
        what=f"the arrays in `{folder}` differ in length: "
        + ", ".join(f"{name} {count:,}" for name, count in steps.items()),
        why="row i of each of them is the same moment",
        fix="collect or convert them again",
    )


def _no_table(file: Path, table: np.ndarray) -> Finding:
    return Finding(
        slug="policy-episode",
        what=f"`{file}` is no table of episodes: {table.dtype}, shape {list(table.shape)}",
        why="int64, one row for each episode: first step, number of steps, task",
        fix="collect or convert them again",
    )


def _no_meta(file: Path, said: str) -> Finding:
    return Finding(
        slug="policy-file",
        what=f"`{file}` does not describe demonstrations: {said}",
        why=f"it is JSON with format {FORMAT}, schema_version {SCHEMA_VERSION} and tasks, each "
        "with a name and a text",
        fix="phalanx recipes collect policy --out FOLDER writes one",
    )
