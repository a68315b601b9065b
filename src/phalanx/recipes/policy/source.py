"""Where demonstrations come from: a folder of arrays, HDF5 files, or Meta-World's experts."""

from __future__ import annotations

from pathlib import Path

from phalanx.recipe import Finding, UserError, did_you_mean
from phalanx.recipes.policy.collecting import collect, collected_folder
from phalanx.recipes.policy.demonstrations import (
    Demonstrations,
    is_demonstrations,
    open_demonstrations,
)
from phalanx.recipes.policy.hdf5 import converted, hdf5_files
from phalanx.recipes.policy.options import DEFAULT_TASKS, PolicyCollecting, PolicyOptions


def open_source(options: PolicyOptions) -> tuple[Demonstrations, list[str]]:
    """The demonstrations, and what there is to say of how they came about; they are collected or
    converted at first use. Raises UserError."""
    if options.data is None:
        done = collect(default_collecting(options), None)
        return open_demonstrations(done.path, options.cameras), list(done.said)
    if is_demonstrations(options.data):
        return open_demonstrations(options.data, options.cameras), []
    files = hdf5_files(options.data) if options.data.exists() else []
    if not files:
        raise UserError(_nothing(options.data))
    return open_demonstrations(converted(files, options), options.cameras), []


def find_source(options: PolicyOptions) -> Demonstrations | None:
    """The demonstrations if they are there already; nothing is collected or converted."""
    folder = options.data or collected_folder(default_collecting(options))
    try:
        if is_demonstrations(folder):
            return open_demonstrations(folder)
        files = hdf5_files(folder) if folder.exists() else []
        return open_demonstrations(converted(files, options)) if files else None
    except (UserError, OSError):
        return None


def default_collecting(options: PolicyOptions) -> PolicyCollecting:
    """What is collected where no data is named."""
    return PolicyCollecting(
        tasks=options.tasks or list(DEFAULT_TASKS),
        episodes=options.episodes,
        cameras=options.cameras,
        image_size=options.image_size if options.cameras else 128,
    )


def unknown_tasks(options: PolicyOptions, found: Demonstrations) -> list[Finding]:
    """Tasks that were asked for and of which there is no demonstration."""
    there = [task.name for task in found.tasks]
    return [
        Finding(
            slug="policy-task",
            what=f"the data has no task `{task}`{did_you_mean(task, there)}",
            why=f"options.tasks names it; {found.folder} has {', '.join(there[:10])}",
            fix=f"tasks={there[0]}",
        )
        for task in options.tasks or ()
        if task not in there
    ]


def _nothing(path: Path) -> Finding:
    said = "holds neither meta.json nor .hdf5 files" if path.exists() else "is not there"
    return Finding(
        slug="policy-file",
        what=f"`{path}` {said}",
        why="options.data: a folder of demonstrations, an .hdf5 file, or a folder of such files",
        fix=f"phalanx recipes collect policy --out {path}",
    )
