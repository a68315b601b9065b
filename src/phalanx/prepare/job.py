"""The job that a command means: a file, a recipe's name, values, or a run that continues."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from phalanx.errors import Finding, UserError, did_you_mean, errors_of
from phalanx.job import LoadedJob, Override, check_job, load_job
from phalanx.job.schema import Job
from phalanx.prepare.resume_target import Continued
from phalanx.recipe.loading import absolute_spec, builtin_recipes

Source = str | Path | Mapping[str, Any] | Job

_ABOUT_THIS_MACHINE = ("deepspeed-missing",)  # of a job's Findings, what is installed here
_BARE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # what can only be meant as a recipe's name


@dataclass(frozen=True)
class ReadJob:
    """A job that was read, and judged by itself."""

    loaded: LoadedJob
    """Its paths are absolute."""
    findings: list[Finding]
    """Warnings and notes; errors were raised."""
    source: Source
    overrides: Sequence[Override | str]
    continued: Continued | None

    @property
    def job(self) -> Job:
        return self.loaded.job


def read_job(
    source: Source | None,
    overrides: Sequence[Override | str],
    resume: str | None,
    *,
    nodes: int,
    is_elsewhere: bool = False,
) -> ReadJob:
    """Read and check a job, which nodes compare when they meet; `is_elsewhere`: it is planned for
    another machine."""
    continued = Continued.find(resume, overrides) if resume is not None else None
    source, overrides = _what_to_train(source, overrides, continued)
    loaded = load_job(resolve_source(source), overrides)
    findings = check_job(loaded, known_recipes=builtin_recipes(), nodes=nodes)
    if is_elsewhere:
        findings = [finding for finding in findings if finding.slug not in _ABOUT_THIS_MACHINE]
    raise_if_errors(findings)
    job = loaded.job.model_copy(update=_absolute_paths(loaded.job))
    return ReadJob(replace(loaded, job=job), findings, source, overrides, continued)


def _what_to_train(
    source: Source | None, overrides: Sequence[Override | str], continued: Continued | None
) -> tuple[Source, Sequence[Override | str]]:
    """Return the job that is trained, and its overrides; a resumed run knows its own."""
    if source is not None:
        return source, overrides
    if continued is None:
        raise UserError(nothing_to_train())
    # A limit of one session is no wish of the next one, and another run needs another name.
    dropped = ["stop_after"] if continued.run is not None else ["stop_after", "name"]
    overrides = [*(Override(key, None, "--resume") for key in dropped), *overrides]
    return continued.job_file, overrides


def resolve_source(source: Source) -> Path | Mapping[str, Any]:
    """A job file, or the values of a job, from whatever the user gave."""
    if isinstance(source, Job):
        return source.model_dump(mode="json", exclude_unset=True)
    if isinstance(source, Mapping):
        return source
    text = str(source)
    builtin = builtin_recipes()
    if text in builtin:
        return builtin[text] / "job.yaml"
    file = text.rpartition(":")[0]
    if file.endswith(".py"):
        return {"recipe": text}
    if not _BARE_NAME.fullmatch(text) or Path(text).exists():
        return Path(text)
    raise UserError(
        Finding(
            slug="unknown-job",
            what=f"`{text}` is neither a job file nor a recipe{did_you_mean(text, builtin)}",
            why=f"no such file here; recipes: {', '.join(builtin)}",
            fix="phalanx train digits",
        )
    )


def _absolute_paths(job: Job) -> dict[str, Any]:
    """Paths of a job that must mean the same from another folder, on resume or in a rank."""
    found: dict[str, Any] = {"recipe": absolute_spec(job.recipe)}
    if job.init_from is not None:
        given = Path(job.init_from)
        path = given if given.exists() else Path(job.output) / given
        found["init_from"] = str(path.resolve())
    return found


def raise_if_errors(findings: list[Finding]) -> None:
    """Raise UserError if one of the findings is an error."""
    if errors_of(findings):
        raise UserError(findings)


def nothing_to_train() -> Finding:
    """Said when neither a job nor a run was named."""
    return Finding(
        slug="no-job",
        what="no job was given",
        why="`train`, `plan` and `verify` take a job file or a recipe; `train` also `--resume RUN`",
        fix="phalanx train digits",
    )
