"""Which runs are watched: by path, name, number of a Slurm job, or over ssh."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from phalanx.run.directory import LATEST, RunDirectory, find_run

if TYPE_CHECKING:  # the extra `web`
    from phalanx.watch.web.library import Library


def find_run_to_watch(reference: str | None, output: Path) -> RunDirectory:
    """Return the run meant by a path, a name, `latest`, or the number of a Slurm job."""
    if reference is not None and re.fullmatch(r"\d+(_\d+)?", reference, re.ASCII):
        of_job = sorted(output.glob(f"*_{reference}"))
        reference = str(of_job[-1]) if of_job else reference
    wanted = None if reference == LATEST else reference
    return find_run(wanted, output, command="phalanx watch", with_scripts=True)


def library_of(named: list[str], output: Path, remote: str | None, stack: ExitStack) -> Library:
    """Return the runs that the pages show; `stack` holds connections to another machine."""
    from phalanx.watch.web.library import Library

    if remote is not None:
        from phalanx.watch.mirror import mirrored

        wanted: list[str | None] = [*named] or [None]
        return Library([], [stack.enter_context(mirrored(remote, name)) for name in wanted])
    marks = ("plan.json", "launch.json")
    folders = [
        Path(name)
        for name in named
        if Path(name).is_dir() and not any((Path(name) / mark).is_file() for mark in marks)
    ]
    runs = [find_run_to_watch(name, output) for name in named if Path(name) not in folders]
    return Library(folders if named else [output], runs)
