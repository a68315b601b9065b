"""Writes a checkpoint for other tools: which one and where to; a child process does the rest."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from phalanx.errors import ExitCode, Finding, UserError, errors_of
from phalanx.job import load_job
from phalanx.job.schema import Job
from phalanx.launch.engine_child import ask_engine, findings_of
from phalanx.recipe.load import recipe_file, recipe_fingerprint
from phalanx.run.checkpoints import (
    MANIFEST_FILE,
    SavedCheckpoint,
    best_good,
    checkpoint_name,
    latest_good,
    list_checkpoints,
    open_checkpoint,
)
from phalanx.run.directory import RunDirectory, find_run

Weights = Literal["raw", "average"]

_TIMEOUT_S = 4 * 3600.0  # merging and writing a large model takes as long as its disk


@dataclass(frozen=True)
class Export:
    """What was written for other tools."""

    folder: Path
    form: str
    recipe: str
    checkpoint: Path
    """What it was made of."""
    weights: Weights
    """Whether it is the weights themselves or their average."""
    files: dict[str, int]
    """Each file with its size in bytes."""
    findings: list[Finding] = field(default_factory=list)


def export_run(
    reference: str | None,
    *,
    form: str = "safetensors",
    checkpoint: str = "best",
    out: Path | None = None,
    weights: str | None = None,
    output: Path = Path("runs"),
) -> Export:
    """Export a run (the newest if none is named) or one checkpoint folder; raises UserError."""
    run, saved, findings = _find_checkpoint(reference, checkpoint, output)
    job = load_job(run.job_file).job
    chosen = _choose_weights(weights, job, saved)
    name = f"{checkpoint_name(saved.step)}-{form}"
    folder = out if out is not None else run.exports / name
    _require_room(folder)
    findings += _changes(job, saved)
    answer, silent_because = ask_engine(
        "export",
        {
            "recipe": job.recipe,
            "options": job.options,
            "checkpoint": str(saved.path),
            "form": form,
            "folder": str(folder.absolute()),
            "is_average": chosen == "average",
        },
        timeout_s=_TIMEOUT_S,
    )
    if answer is None:
        raise UserError(_silent(job, form, silent_because), exit_code=ExitCode.FAILED)
    findings += findings_of(answer)
    if errors_of(findings):
        is_crash = any(finding.slug == "export-failed" for finding in findings)
        raise UserError(findings, exit_code=ExitCode.FAILED if is_crash else ExitCode.USAGE)
    files = {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    return Export(folder, form, job.recipe, saved.path, chosen, files, findings)


def _find_checkpoint(
    reference: str | None, wanted: str, output: Path
) -> tuple[RunDirectory, SavedCheckpoint, list[Finding]]:
    """The checkpoint that is meant, verified, with warnings about others that were passed over."""
    path = Path(reference) if reference is not None else None
    if path is not None and (path / MANIFEST_FILE).is_file():
        folder = path.resolve()
        run = RunDirectory(folder.parent.parent)
        return run, _open(run, folder), []
    newest = reference in (None, "latest")
    run = find_run(None if newest else reference, output, command="phalanx export")
    if wanted in ("best", "latest"):
        find = best_good if wanted == "best" else latest_good
        saved, problems = find(run.checkpoints)
        if saved is None:
            raise UserError([*problems, _no_checkpoint(run)])
        return run, saved, problems
    number = wanted.removeprefix("checkpoint-")
    folder = run.checkpoints / checkpoint_name(int(number) if number.isdecimal() else -1)
    if not folder.is_dir():
        there = [str(step) for step, _ in list_checkpoints(run.checkpoints)]
        raise UserError(
            Finding(
                slug="no-such-checkpoint",
                what=f"the run has no checkpoint `{wanted}`",
                why=f"`{run.checkpoints}` holds {', '.join(there) or 'none'}; "
                "checkpoint.keep says how many stay",
                fix=f"--checkpoint {there[0] if there else 'latest'}, or best, latest",
            )
        )
    return run, _open(run, folder), []


def _open(run: RunDirectory, folder: Path) -> SavedCheckpoint:
    """A checkpoint that was named: no other one takes its place."""
    saved, problem = open_checkpoint(folder)
    if saved is None:
        assert problem is not None
        fix = f"phalanx export {shlex.quote(str(run.path))} --checkpoint latest"
        raise UserError(replace(problem, severity="error", fix=fix))
    return saved


def _no_checkpoint(run: RunDirectory) -> Finding:
    return Finding(
        slug="no-checkpoint",
        what=f"the run `{run.name}` has no checkpoint to export",
        why=f"`{run.checkpoints}` holds no whole one; the first is written after checkpoint.every",
        fix=f"phalanx train --resume {shlex.quote(str(run.path))}",
    )


def _choose_weights(wanted: str | None, job: Job, saved: SavedCheckpoint) -> Weights:
    has_average = saved.state.get("ema") is not None
    if wanted is None:  # what was evaluated
        return "average" if has_average and job.ema.evaluate else "raw"
    if wanted == "raw" or (wanted == "average" and has_average):
        return "raw" if wanted == "raw" else "average"
    if wanted == "average":
        raise UserError(
            Finding(
                slug="no-average",
                what=f"the checkpoint of step {saved.step} holds no average of the weights",
                why=f"ema.decay = {job.ema.decay} in the run's job",
                fix="--weights raw",
            )
        )
    raise UserError(
        Finding(
            slug="unknown-weights",
            what=f"--weights {wanted} is neither `raw` nor `average`",
            why="a checkpoint holds the weights, and their average where ema.decay is set",
            fix="--weights raw",
        )
    )


def _changes(job: Job, saved: SavedCheckpoint) -> list[Finding]:
    """A recipe that is not what it was may write something else than what was trained."""
    then = saved.state.get("identity", {}).get("recipe_fingerprint")
    file = recipe_file(job.recipe)
    if not file.is_file() or then in (None, now := recipe_fingerprint(job.recipe)):
        return []
    return [
        Finding(
            slug="recipe-changed",
            what="the recipe is not what it was when the checkpoint was written",
            why=f"the files of {file} were {then} then and are {now} now",
            fix="nothing, if only its `export` changed; otherwise take the change back",
            severity="warning",
        )
    ]


def _require_room(folder: Path) -> None:
    """Nothing that is there is overwritten."""
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if folder.exists():
        kind = "folder with other files" if folder.is_dir() else "file"
        raise UserError(
            Finding(
                slug="export-exists",
                what=f"`{folder}` is there already, a {kind}",
                why="an export never overwrites or mixes with what is there",
                fix=f"--out {shlex.quote(f'{folder}_2')}, or remove it: "
                f"`rm -r {shlex.quote(str(folder))}`",
            )
        )


def _silent(job: Job, form: str, why: str) -> Finding:
    return Finding(
        slug="export-silent",
        what=f"the form `{form}` was not written",
        why=f"the child process that writes it ended early: {why}",
        fix=f"look at the recipe's `export` in {recipe_file(job.recipe)}",
    )
