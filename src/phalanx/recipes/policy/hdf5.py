"""HDF5 files of LIBERO and robomimic as demonstrations: read once, kept as arrays that are mapped.

Both keep `data/demo_N/actions` and `data/demo_N/obs/NAME`. LIBERO has a file for each task, with
its description in `data.attrs["problem_info"]`; robomimic's files are one task each, named after
the file.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from phalanx.recipe import Finding, UserError, cache_folder, did_you_mean, first_few, report
from phalanx.recipes.policy.demonstrations import (
    Episode,
    Task,
    is_demonstrations,
    write_demonstrations,
)
from phalanx.recipes.policy.libero_suite import FPS as LIBERO_FPS  # robosuite's too
from phalanx.recipes.policy.options import PolicyOptions

SUFFIXES = (".hdf5", ".h5")
_STATES = (
    ("ee_states", "gripper_states"),  # LIBERO: position, axis-angle; both fingers
    ("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos", "object"),  # robomimic, low_dim
    ("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos"),
)


def hdf5_files(path: Path) -> list[Path]:
    """The files that are meant by a path."""
    if path.is_file():
        return [path] if path.suffix in SUFFIXES else []
    return sorted(file for suffix in SUFFIXES for file in path.rglob(f"*{suffix}"))


def converted(files: Sequence[Path], options: PolicyOptions) -> Path:
    """The folder of arrays that these files become, made at first use. Raises UserError with all
    that is wrong with them."""
    stamps = [[str(f.resolve()), f.stat().st_size, f.stat().st_mtime_ns] for f in files]
    asked = json.dumps([stamps, options.cameras, options.state_keys]).encode()
    folder = cache_folder("policy") / f"hdf5-{hashlib.sha256(asked).hexdigest()[:16]}"
    if is_demonstrations(folder):
        return folder
    library = _h5py(files[0])
    reader = _Reader(library, files, options)
    tasks = reader.look()
    about = {"fps": LIBERO_FPS, "source": "hdf5", "files": [str(file) for file in files]}
    write_demonstrations(folder, reader.episodes(), tasks, about=about)
    return folder


class _Reader:
    def __init__(self, library: Any, files: Sequence[Path], options: PolicyOptions) -> None:
        self._library = library
        self._files = files
        self._options = options
        self._keys: tuple[str, ...] = tuple(options.state_keys or ())
        self._good: list[list[str]] = []

    def look(self) -> list[Task]:
        """Judge every episode of every file before anything is written; returns the tasks."""
        findings: list[Finding] = []
        tasks: list[Task] = []
        sizes: dict[str, int] = {}
        for number, file in enumerate(self._files):
            report(f"{file.name}: file {number + 1} of {len(self._files)}")
            try:
                with self._library.File(file, "r") as opened:
                    found, good = self._look_at(opened, file, sizes)
                    tasks.append(_task(opened, file))
            except (OSError, KeyError, ValueError, RuntimeError) as error:
                findings.append(_not_read(file, error))
                continue
            findings += found
            self._good.append(good)
        findings += self._unequal(sizes)
        if findings:
            raise UserError(findings)
        return tasks

    def _look_at(
        self, opened: Any, file: Path, sizes: dict[str, int]
    ) -> tuple[list[Finding], list[str]]:
        demos = sorted(opened["data"], key=_number)
        if not demos:
            return [_not_read(file, ValueError("it has no data/demo_0"))], []
        broken: list[str] = []
        bad: list[str] = []
        findings: list[Finding] = []
        there = sorted(opened["data"][demos[0]].get("obs", {}))
        self._keys = self._keys or next((k for k in _STATES if set(k) <= set(there)), ())
        findings += [_no_state_key(file, name, there) for name in self._keys if name not in there]
        absent = [name for name in self._options.cameras if name not in there]
        findings += [_no_camera(file, name, there) for name in absent]
        if not self._keys:
            findings.append(_no_state(file, there))
        if findings:
            return findings, []
        for demo in demos:
            group = opened["data"][demo]
            try:
                actions = group["actions"]
                parts = {name: group["obs"][name] for name in (*self._keys, *self._options.cameras)}
                lengths = {"actions": len(actions)} | {k: len(v) for k, v in parts.items()}
            except KeyError as error:
                broken.append(f"{demo}: {str(error).strip(chr(34))}")
                continue
            if len(set(lengths.values())) != 1 or not len(actions):
                broken.append(f"{demo}: " + ", ".join(f"{k} {n}" for k, n in lengths.items()))
                continue
            sizes[f"`{file}`, {demo}"] = int(actions.shape[1])
            for name in ("actions", *self._keys):
                rows = np.asarray(actions if name == "actions" else parts[name])
                wrong = np.flatnonzero(~np.isfinite(rows.reshape(len(rows), -1)).all(1))
                bad += [f"{demo}, {name}, step {step}" for step in wrong.tolist()]
        if broken:
            findings.append(_broken(file, broken, len(demos)))
        if bad:
            findings.append(_not_finite(file, bad))
        return findings, demos

    def episodes(self) -> Iterator[Episode]:
        for task, (file, demos) in enumerate(zip(self._files, self._good, strict=True)):
            report(f"{file.name}: {len(demos)} episodes of file {task + 1} of {len(self._files)}")
            with self._library.File(file, "r") as opened:
                for demo in demos:
                    group = opened["data"][demo]
                    length = len(group["actions"])
                    parts = [np.asarray(group["obs"][k]).reshape(length, -1) for k in self._keys]
                    # LIBERO and robosuite write what OpenGL gives: the last row first.
                    images = {
                        c: np.asarray(group["obs"][c])[:, ::-1] for c in self._options.cameras
                    }
                    actions = np.asarray(group["actions"])
                    yield Episode(task, np.concatenate(parts, 1), actions, images)

    def _unequal(self, sizes: dict[str, int]) -> list[Finding]:
        if len(set(sizes.values())) < 2:
            return []
        usual = max(set(sizes.values()), key=list(sizes.values()).count)
        odd = [f"{place}: {size}" for place, size in sizes.items() if size != usual]
        return [
            Finding(
                slug="policy-action-size",
                what=f"{len(odd):,} episodes have actions of other sizes than {usual}: "
                f"{first_few(odd)}",
                why=f"{len(sizes) - len(odd):,} of {len(sizes):,} episodes have {usual} numbers in "
                "an action, and one policy has one size",
                fix="leave those files out: data=FOLDER takes every .hdf5 file in it",
            )
        ]


def _no_camera(file: Path, name: str, there: Sequence[str]) -> Finding:
    pictures = [key for key in there if "rgb" in key or "image" in key]
    return Finding(
        slug="policy-camera",
        what=f"`{file}` has no `{name}` in data/demo_0/obs{did_you_mean(name, there)}",
        why=f"options.cameras names it; there: {', '.join(there) or 'nothing'}",
        fix=f"cameras={','.join(pictures[:2]) or '[]'}",
    )


def _no_state_key(file: Path, name: str, there: Sequence[str]) -> Finding:
    return Finding(
        slug="policy-state",
        what=f"`{file}` has no `{name}` in data/demo_0/obs{did_you_mean(name, there)}",
        why=f"options.state_keys names it; there: {', '.join(there) or 'nothing'}",
        fix=f"state_keys={','.join(key for key in there if 'rgb' not in key) or 'NAME'}",
    )


def _task(opened: Any, file: Path) -> Task:
    name = file.stem.removesuffix("_demo")
    said = opened["data"].attrs.get("problem_info")
    try:
        text = str(json.loads(said)["language_instruction"]) if said is not None else ""
    except (ValueError, KeyError, TypeError):
        text = ""
    return Task(name, text.strip('" ') or re.sub(r"[_-]+", " ", name).lower())


def _number(demo: str) -> tuple[int, str]:
    digits = re.sub(r"\D", "", demo)
    return int(digits) if digits else -1, demo


def _h5py(file: Path) -> Any:
    try:
        import h5py
    except ImportError as error:
        raise UserError(
            Finding(
                slug="missing-extra",
                what="HDF5 files are read by h5py, which is not installed",
                why=f"options.data names `{file}`; it comes with the extra `policy`",
                fix="pip install 'phalanx[policy]'",
            )
        ) from error
    return h5py


def _not_read(file: Path, error: Exception) -> Finding:
    return Finding(
        slug="policy-file",
        what=f"`{file}` cannot be read: {str(error)[:200]}",
        why="an HDF5 file of LIBERO or robomimic has data/demo_0/actions and data/demo_0/obs",
        fix=f"python -c \"import h5py; h5py.File('{file}').visit(print)\"",
    )


def _no_state(file: Path, there: Sequence[str]) -> Finding:
    return Finding(
        slug="policy-state",
        what=f"which part of data/demo_0/obs in `{file}` is the state is not known",
        why=f"there: {', '.join(there) or 'nothing'}; known: "
        + ", or ".join(" + ".join(names) for names in _STATES[:2]),
        fix=f"state_keys={','.join(there[:2]) or 'NAME'}",
    )


def _broken(file: Path, broken: Sequence[str], total: int) -> Finding:
    return Finding(
        slug="policy-episode",
        what=f"{len(broken)} of {total} episodes in `{file}` are broken: {first_few(broken)}",
        why="actions and everything in obs have one row for each step",
        fix="download or record the file again, or delete those groups from it",
    )


def _not_finite(file: Path, places: Sequence[str]) -> Finding:
    return Finding(
        slug="policy-not-finite",
        what=f"{len(places):,} steps in `{file}` are not finite: {first_few(places)}",
        why="a NaN in one sample makes the loss of its whole batch NaN",
        fix="delete those episodes from the file, or mend the numbers",
    )
