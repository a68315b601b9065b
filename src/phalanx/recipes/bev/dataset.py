"""highway-env's experts as data: driven at first use, kept as arrays, mapped into memory.

A folder has `train/` and `test/`, each with an array per name of ARRAYS, and `about.json`.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from phalanx.recipe import (
    Finding,
    Split,
    UserError,
    cache_folder,
    new_folder,
    report,
    roll_out,
    usable_cores,
)
from phalanx.recipes.bev.collecting import collect_episode
from phalanx.recipes.bev.grid import CELLS, CHANNELS
from phalanx.recipes.bev.options import BevCollecting
from phalanx.recipes.bev.scenarios import ROUTE_M, WAYPOINTS

ARRAYS = ("bev", "speed", "command", "route", "plan")
ABOUT = "about.json"
_SPLITS: tuple[Split, Split] = ("train", "test")
_SHAPES: dict[str, tuple[int, ...]] = {
    "bev": (len(CHANNELS), *CELLS),
    "speed": (),
    "command": (),
    "route": (len(ROUTE_M), 2),
    "plan": (WAYPOINTS, 2),
}
_VERSION = 2  # of what is drawn and driven: another one is another folder
_TEST_SEEDS = 500_000
"""Seeds of test episodes count from here, those of benchmarks from twice as many."""
BENCHMARK_SEEDS = 2 * _TEST_SEEDS


def missing_simulator() -> list[Finding]:
    """What is needed to drive, and is not installed."""
    if find_spec("highway_env") is not None:
        return []
    return [
        Finding(
            slug="missing-extra",
            what="highway-env is needed, and is not installed",
            why="the recipe's own data and its closed loop are driven in it, in the extra `bev`",
            fix="pip install 'phalanx[bev]'",
        )
    ]


def default_folder(settings: BevCollecting) -> Path:
    """Where such a collection is kept."""
    about = settings.model_dump(exclude={"workers"})
    name = f"{settings.episodes}x{'-'.join(settings.scenarios)}-{about['seed']}-v{_VERSION}"
    return cache_folder("bev") / name


def collect(settings: BevCollecting, out: Path | None) -> Path:
    """Drive all episodes, and write what was seen; the folder appears whole."""
    folder = out or default_folder(settings)
    folder.parent.mkdir(parents=True, exist_ok=True)
    counts = {"train": settings.episodes, "test": max(2, settings.episodes // 10)}
    episodes = [
        (split, name, settings.seed * 10_007 + index + (_TEST_SEEDS if split == "test" else 0))
        for split, count in counts.items()
        for index in range(count)
        for name in settings.scenarios
    ]
    workers = settings.workers or usable_cores()
    report(f"highway-env's experts drive: {len(episodes)} episodes in {workers} processes")
    found = roll_out(
        _drive,
        episodes,
        workers=workers,
        done=lambda done: report(f"highway-env's experts drive: {done} of {len(episodes)}"),
    )
    about: dict[str, Any] = {"version": _VERSION, **settings.model_dump(exclude={"workers"})}
    empty = sum(not samples for samples in found)
    about["left_out"] = {"they ended within a plan's length": empty} if empty else {}
    with new_folder(folder, is_new=out is not None) as temporary:
        for split in counts:
            kept = [
                samples
                for (whose, _, _), samples in zip(episodes, found, strict=True)
                if whose == split and samples
            ]
            (temporary / split).mkdir()
            for name in ARRAYS:
                array = np.concatenate([samples[name] for samples in kept])
                np.save(temporary / split / f"{name}.npy", array)
            about[split] = len(array)
        (temporary / ABOUT).write_text(json.dumps(about, indent=1), encoding="utf-8")
    return folder


def _drive(episode: tuple[str, str, int]) -> dict[str, np.ndarray]:
    _, scenario, seed = episode
    return collect_episode(scenario, seed)


def is_collection(folder: Path) -> bool:
    """Whether `collect` wrote this folder."""
    return (folder / ABOUT).is_file()


def describe(folder: Path) -> list[str]:
    """What was collected, in words."""
    about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    roads = ", ".join(about["scenarios"])
    return [
        f"{about['train']:,} samples to train and {about['test']:,} to test, of {roads}: "
        f"{about['episodes']} episodes of each to train",
        *(f"{count} episodes gave none: {why}" for why, count in about["left_out"].items()),
    ]


def read_arrays(folder: Path, split: Split) -> dict[str, np.ndarray]:
    """The arrays of a split, mapped; raises UserError with all that is wrong with them."""
    arrays, findings = {}, []
    for name in ARRAYS:
        path = folder / split / f"{name}.npy"
        try:
            arrays[name] = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            findings.append(_unreadable(path, error))
    if findings:
        raise UserError(findings)
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise UserError(_unequal(folder / split, lengths))
    return arrays


def check_collection(folder: Path) -> list[Finding]:
    """Whether all arrays are there, of the right shapes, and finite numbers."""
    findings: list[Finding] = []
    for split in _SPLITS:
        try:
            arrays = read_arrays(folder, split)
        except UserError as error:
            findings += error.findings
            continue
        for name, array in arrays.items():
            path = folder / split / f"{name}.npy"
            if array.shape[1:] != _SHAPES[name]:
                findings.append(_misshapen(path, array.shape[1:], _SHAPES[name]))
            elif array.dtype.kind == "f" and not (good := np.isfinite(array)).all():
                bad = np.flatnonzero(~good.reshape(len(array), -1).all(1))
                findings.append(_not_finite(path, bad))
    return findings


def _misshapen(path: Path, found: tuple[int, ...], wanted: tuple[int, ...]) -> Finding:
    return Finding(
        slug="bev-array",
        what=f"`{path}` has samples of the shape {list(found)}",
        why=f"a planner takes {list(wanted)}; another version may have collected it",
        fix=f"phalanx recipes collect bev --out {path.parent.parent}_2",
    )


def _not_finite(path: Path, bad: np.ndarray) -> Finding:
    return Finding(
        slug="bev-not-finite",
        what=f"`{path}` holds numbers that are not finite",
        why=f"{len(bad)} samples, the first at index {bad[0]}",
        fix=f"phalanx recipes collect bev --out {path.parent.parent}_2",
    )


def _unreadable(path: Path, error: Exception) -> Finding:
    return Finding(
        slug="bev-array",
        what=f"`{path}` cannot be read: {type(error).__name__}",
        why=f"{' '.join(str(error).split())[:300]}; a collection has {', '.join(ARRAYS)} as .npy",
        fix=f"rm -r {path.parent.parent} && phalanx recipes collect bev",
    )


def _unequal(folder: Path, lengths: dict[str, int]) -> Finding:
    return Finding(
        slug="bev-array",
        what=f"the arrays in `{folder}` differ in length",
        why=", ".join(f"{name}: {length}" for name, length in lengths.items()),
        fix=f"rm -r {folder.parent} && phalanx recipes collect bev",
    )
