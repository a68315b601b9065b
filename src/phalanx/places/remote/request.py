"""From a command line to what is trained over there: the words for its `phalanx train`, the folder
that goes along, and the files that the job names."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.errors import Finding
from phalanx.job import LoadedJob, Override
from phalanx.places.remote.answers import RemoteRun
from phalanx.places.remote.environment import extras_of
from phalanx.places.remote.places import Place
from phalanx.places.slurm.request import load_job_elsewhere, name_from, words_of
from phalanx.recipe.loading import builtin_recipes


@dataclass(frozen=True)
class TrainRequest:
    """What is to be trained over there."""

    name: str
    """Of the run."""
    words: tuple[str, ...]
    """What follows `phalanx train`, without name and output."""
    project: str
    """Name of the folder over there that this one is pushed into."""
    output: str
    files: tuple[str, ...]
    """What the job names and is here: it must be there too."""
    extras: tuple[str, ...]
    leave_out: tuple[str, ...]
    """What stays here besides the usual."""
    is_resumed: bool = False

    @property
    def run(self) -> str:
        """The run directory, from the project's folder."""
        return f"{self.output.rstrip('/')}/{self.name}"

    def argv(self, python: str) -> list[str]:
        """The command over there."""
        own = [] if self.is_resumed else [f"--output={self.output}", f"--name={self.name}"]
        return [python, "-m", "phalanx", "train", *own, *self.words]


def project_of(folder: Path) -> str:
    """The name over there of a folder here: readable, plain, and its own."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", folder.name).strip("-._")[:40] or "project"
    return f"{plain}-{hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:6]}"


def make_request(
    job: str | None, overrides: Sequence[Override | str]
) -> tuple[TrainRequest, LoadedJob, list[Finding]]:
    """The request for a job of this folder, and what is wrong with it as far as it shows here."""
    loaded, findings = load_job_elsewhere(job, overrides)
    assert job is not None, "a job was loaded"
    findings += [*_outside(job, loaded), *_too_wide()]
    output = loaded.job.output
    request = TrainRequest(
        name=loaded.job.name or f"{name_from(job)}-{time.strftime('%Y%m%d-%H%M%S')}",
        words=words_of(_from_here(job), overrides),
        project=project_of(Path.cwd()),
        output=output,
        files=tuple(dict.fromkeys(_files(loaded, job))),
        extras=extras_of(loaded),
        leave_out=() if Path(output).is_absolute() else (f"/{os.path.normpath(output)}/",),
    )
    return request, loaded, findings


def resume_request(
    run: RemoteRun, overrides: Sequence[Override | str], place: Place
) -> tuple[TrainRequest, list[Finding]]:
    """The request to go on with a run that is over there."""
    project = project_of(Path.cwd())
    output = run.run.removesuffix(f"/{run.name}")
    request = TrainRequest(
        name=run.name,
        words=_resume_words(run, overrides),
        project=project,
        output=output,
        files=(),
        extras=(),
        leave_out=(),
        is_resumed=True,
    )
    if run.project.rpartition("/")[2] == project:
        return request, list(_too_wide())
    return request, [
        Finding(
            slug="remote-other-folder",
            what=f"the run {run.name!r} was started from another folder than this",
            why=f"its code is in {run.project} on {place.target}, this folder's would be in "
            f"{project}",
            fix=f"cd to the folder it was started from, and: phalanx remote train {place.name} "
            f"--resume {run.name}",
        )
    ]


def _too_wide() -> Iterator[Finding]:
    """A home folder holds keys and everything else; nobody means to push it."""
    here = Path.cwd()
    if here in (Path("/"), Path.home()):
        yield Finding(
            slug="remote-folder",
            what=f"all of {here} would be pushed",
            why="`phalanx remote train` pushes the folder it is run in, and this is "
            + ("the root of the file system" if here == Path("/") else "your home folder"),
            fix="mkdir project, put job and code there, cd project",
        )


def _resume_words(run: RemoteRun, overrides: Sequence[Override | str]) -> tuple[str, ...]:
    mark = "job"  # `words_of` puts a job among the words; here is none
    words = list(words_of(mark, overrides))
    words.remove(mark)
    return (f"--resume={run.run}", *words)


def _from_here(job: str) -> str:
    """A job by a path that also holds over there."""
    path = Path(job)
    if path.is_absolute() and path.is_relative_to(Path.cwd()):
        return str(path.relative_to(Path.cwd()))
    return job


def _outside(job: str, loaded: LoadedJob) -> Iterator[Finding]:
    """Files of the job that are not below the folder that is pushed."""
    recipe = loaded.job.recipe
    named = {} if job in builtin_recipes() else {"the job": job.rpartition(":")[0] or job}
    if recipe not in builtin_recipes():
        named["the recipe"] = recipe.rpartition(":")[0]
    here = Path.cwd()
    for what, name in named.items():
        inside = Path(os.path.normpath(here / name)).is_relative_to(here)
        if not inside or (what == "the recipe" and Path(name).is_absolute()):
            is_moved = inside and Path(name).is_absolute()
            yield Finding(
                slug="remote-job",
                what=f"{what} `{name}` is "
                + ("named by a path of this machine" if is_moved else "outside the folder")
                + " that goes along",
                why=f"`phalanx remote train` pushes {here}, to another path over there",
                fix=f"recipe: {os.path.relpath(name, here)}:CLASS"
                if is_moved
                else f"cd {os.path.commonpath([here, Path(name).resolve()])}, and run it there",
            )


def _files(loaded: LoadedJob, job: str) -> Iterator[str]:
    """What the job names and is here: itself, its recipe, data, first weights, DeepSpeed's file."""
    if job not in builtin_recipes():
        yield os.path.relpath(job.rpartition(":")[0] or job)
    if loaded.job.recipe not in builtin_recipes():
        yield loaded.job.recipe.rpartition(":")[0]
    values = [loaded.job.options, loaded.job.init_from, loaded.job.deepspeed.config]
    for text in _texts(values):
        with_line_breaks = len(text) > 4096 or "\0" in text or "\n" in text
        if text and not with_line_breaks and os.path.exists(text):  # noqa: PTH110 - no OSError
            yield text


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def missing_findings(place: Place, missing: Sequence[str], *, is_pushed: bool) -> Iterator[Finding]:
    """Files that the job names and the other machine has not."""
    for path in missing:
        is_absolute = Path(path).is_absolute()
        yield Finding(
            slug="remote-data",
            what=f"`{path}` is here and not on {place.target}",
            why="the job names it by a path of this machine"
            if is_absolute
            else "it was left out of the push: by .gitignore, or because data/raw, runs and "
            "environments stay here"
            if is_pushed
            else "it would be left out of the push: by .gitignore, or because data/raw, runs and "
            "environments stay here",
            fix=f"name the path it has over there, or put it below {Path.cwd()}"
            if is_absolute
            else f"--include {path}",
        )
