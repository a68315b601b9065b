"""The trained model that a person means: a run, a checkpoint folder or a file of weights, and what
it takes to build that model again. `export` and `evaluate` begin here."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

from phalanx.errors import Finding, UserError
from phalanx.job import Override, load_job
from phalanx.job.schema import Job
from phalanx.planner.schema.plan import Plan
from phalanx.prepare.job import resolve_source
from phalanx.recipe.loading import absolute_spec, recipe_file, recipe_fingerprint
from phalanx.run.checkpoints import (
    EMA_FILE,
    MANIFEST_FILE,
    MODEL_FILE,
    SavedCheckpoint,
    best_good,
    checkpoint_name,
    latest_good,
    list_checkpoints,
    open_checkpoint,
)
from phalanx.run.directory import RunDirectory, find_run
from phalanx.run.event_kinds import Evaluate
from phalanx.run.events import read_events
from phalanx.run.weights_file import read_record

Weights = Literal["raw", "average"]
WEIGHT_FILES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".onnx")
_PATIENT = (OSError, ValueError, KeyError, TypeError)


@dataclass(frozen=True)
class Trained:
    """A model that was trained."""

    file: Path
    """Its weights."""
    job: Job
    """What it was trained with, as far as that is known, with the overrides that were given."""
    title: str
    """`checkpoint-120 (averaged weights)`, or the file's name."""
    run: RunDirectory | None = None
    """The run that it lies in, where it does."""
    checkpoint: SavedCheckpoint | None = None
    weights: Weights = "raw"
    step: int | None = None
    trained_job: Job | None = None
    """The job without the overrides."""
    plan: Plan | None = None
    """What was done in training, where that is known."""
    recorded: Mapping[str, float] | None = None
    """What training found for these weights; None: they were not evaluated then."""
    is_rounded: bool = False
    """Whether the file computes in fewer bits than training did: its figures are its own."""
    trained_recipe: str | None = None
    """The fingerprint of the recipe then."""
    findings: list[Finding] = field(default_factory=list)

    @property
    def job_hash(self) -> str:
        """Of recipe, options and all that was asked; paths of this machine are no part of it."""
        asked = self.job.model_dump(mode="json", exclude_unset=True, exclude={"output", "name"})
        text = json.dumps(asked, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def changes(self) -> list[Finding]:
        """A recipe that is not what it was may make something else of the weights."""
        file = recipe_file(self.job.recipe)
        if self.trained_recipe is None or not file.is_file():
            return []
        now = recipe_fingerprint(self.job.recipe)
        if now == self.trained_recipe:
            return []
        return [
            Finding(
                slug="recipe-changed",
                what="the recipe is not what it was when the checkpoint was written",
                why=f"the files of {file} were {self.trained_recipe} then and are {now} now",
                fix="nothing, if what changed has no part in this; otherwise take the change back",
                severity="warning",
            )
        ]


class Which(TypedDict, total=False):
    """Which weights are meant, besides the run or file that is named."""

    checkpoint: str
    """Of a run: `best` (the default), `latest` or a step."""
    weights: str | None
    """`raw` or `average`; default: what training evaluated."""
    recipe: str | None
    """The recipe of weights that do not name it."""
    output: Path
    """The folder with runs; default: `runs`."""


def find_trained(
    reference: str | None,
    overrides: Sequence[Override | str] = (),
    *,
    command: str,
    **which: Unpack[Which],
) -> Trained:
    """The model behind a run (its name, its folder, or nothing: the newest), a checkpoint folder or
    a file of weights; raises UserError."""
    path = Path(reference) if reference is not None else None
    asked = _Asked(overrides, command, which.get("weights"), which.get("recipe"))
    if path is not None and path.is_file():
        return _of_file(path, asked)
    if path is not None and (path / MANIFEST_FILE).is_file():
        return _of_checkpoint(_open(path.resolve(), asked), asked)
    if path is not None and path.suffix in WEIGHT_FILES:
        raise UserError(_no_such_file(path))
    newest = reference in (None, "latest")
    output = which.get("output", Path("runs"))
    run = find_run(None if newest else reference, output, command=command)
    saved, problems = _choose_checkpoint(run, which.get("checkpoint", "best"), asked)
    found = _of_checkpoint(saved, asked)
    return replace(found, findings=[*problems, *found.findings])


@dataclass(frozen=True)
class _Asked:
    overrides: Sequence[Override | str]
    command: str
    weights: str | None
    recipe: str | None

    def job(self, known: Path | Mapping[str, Any] | None, named: Path) -> Job:
        """The job that is known, with another recipe if one was named."""
        overrides = list(self.overrides)
        if self.recipe is not None and known is None:
            known = resolve_source(self.recipe)
        elif self.recipe is not None:
            overrides.append(Override("recipe", self.recipe, "--recipe"))
        if known is None:
            raise UserError(_no_recipe(named, self.command))
        job = load_job(known, overrides).job
        if ".py" in job.recipe and not recipe_file(job.recipe).is_file():
            raise UserError(_recipe_elsewhere(named, job.recipe, self.command))
        return job.model_copy(update={"recipe": absolute_spec(job.recipe)})


def _of_file(path: Path, asked: _Asked) -> Trained:
    path = path.resolve()
    for folder, name in ((path.parent, MODEL_FILE), (path.parent.parent, EMA_FILE)):
        if folder / name == path and (folder / MANIFEST_FILE).is_file():
            own: Weights = "average" if name == EMA_FILE else "raw"
            if asked.weights not in (None, own):
                raise UserError(_other_weights(path, own, asked.weights))
            return _of_checkpoint(_open(folder, asked), replace(asked, weights=own))
    if path.suffix not in WEIGHT_FILES:
        raise UserError(_unknown_file(path))
    record = read_record(path)
    if record is None:
        return Trained(path, asked.job(None, path), path.name)
    known = {"recipe": record.get("recipe"), "options": record.get("options", {})}
    return Trained(
        path,
        asked.job(known if isinstance(known["recipe"], str) else None, path),
        path.name,
        weights="average" if record.get("weights") == "average" else "raw",
        step=record.get("step"),
        recorded=record.get("metrics") or None,
        is_rounded=record.get("precision") in ("fp16", "int8"),
        trained_recipe=record.get("recipe_fingerprint"),
    )


def _of_checkpoint(saved: SavedCheckpoint, asked: _Asked) -> Trained:
    run = RunDirectory(saved.path.parent.parent)
    is_in_run = run.job_file.is_file() and run.plan_file.is_file()
    known = _job_of(saved, run if is_in_run else None)
    job = asked.job(known, saved.path)
    trained_job = load_job(known).job if known is not None else None
    weights = _choose_weights(asked.weights, job, saved)
    is_as_then = trained_job is not None and trained_job.options == job.options
    is_evaluated = weights == _evaluated(job, saved) and is_as_then
    return Trained(
        saved.path / (EMA_FILE if weights == "average" else MODEL_FILE),
        job,
        f"{saved.path.name} ({'averaged weights' if weights == 'average' else 'weights'})",
        run=run if is_in_run else None,
        checkpoint=saved,
        weights=weights,
        step=saved.step,
        trained_job=trained_job,
        plan=_plan_of(saved, run if is_in_run else None),
        recorded=_recorded(saved, run if is_in_run else None) if is_evaluated else None,
        trained_recipe=saved.state.get("identity", {}).get("recipe_fingerprint"),
    )


def _job_of(saved: SavedCheckpoint, run: RunDirectory | None) -> Path | Mapping[str, Any] | None:
    """What a checkpoint carries; older ones know the recipe and its options alone, and lie in a run
    that knows the rest."""
    carried: Mapping[str, Any] | None = saved.state.get("job")
    if carried is not None:
        portable = saved.state.get("portable_options") or {}
        return {**carried, "options": {**(carried.get("options") or {}), **portable}}
    if run is not None:
        return run.job_file
    identity = saved.state.get("identity", {})
    if "recipe" not in identity:
        return None
    return {name: identity[name] for name in ("recipe", "options", "seed") if name in identity}


def _plan_of(saved: SavedCheckpoint, run: RunDirectory | None) -> Plan | None:
    try:
        if (carried := saved.state.get("plan")) is not None:
            return Plan.from_json(carried)
        if run is None:
            return None
        revision = run.path / f"plan-{saved.state['plan_revision']}.json"
        return Plan.from_json(json.loads(revision.read_text(encoding="utf-8")))
    except _PATIENT:
        return None


def _recorded(saved: SavedCheckpoint, run: RunDirectory | None) -> Mapping[str, float] | None:
    """What was found at the step of the checkpoint."""
    if saved.state.get("evaluated_step") != saved.step:
        return None
    if saved.state.get("metrics"):
        metrics: Mapping[str, float] = saved.state["metrics"]
        return metrics
    events = read_events(run.events) if run is not None else []
    bodies = [event.body for event in events]
    there = [body for body in bodies if isinstance(body, Evaluate) and body.step == saved.step]
    return there[-1].metrics if there else None


def _evaluated(job: Job, saved: SavedCheckpoint) -> Weights:
    return "average" if saved.state.get("ema") is not None and job.ema.evaluate else "raw"


def _choose_checkpoint(
    run: RunDirectory, wanted: str, asked: _Asked
) -> tuple[SavedCheckpoint, list[Finding]]:
    """The checkpoint that is meant, verified, with warnings about others that were passed over."""
    if wanted in ("best", "latest"):
        saved, problems = (best_good if wanted == "best" else latest_good)(run.checkpoints)
        if saved is None:
            raise UserError([*problems, _no_checkpoint(run)])
        return saved, problems
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
    return _open(folder, asked), []


def _open(folder: Path, asked: _Asked) -> SavedCheckpoint:
    """A checkpoint that was named: no other one takes its place."""
    saved, problem = open_checkpoint(folder)
    if saved is None:
        assert problem is not None
        run = shlex.quote(str(folder.parent.parent))
        fix = f"{asked.command} {run} --checkpoint latest"
        raise UserError(replace(problem, severity="error", fix=fix))
    return saved


def _choose_weights(wanted: str | None, job: Job, saved: SavedCheckpoint) -> Weights:
    has_average = saved.state.get("ema") is not None
    if wanted is None:
        return _evaluated(job, saved)
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


def _no_checkpoint(run: RunDirectory) -> Finding:
    return Finding(
        slug="no-checkpoint",
        what=f"the run `{run.name}` has no checkpoint",
        why=f"`{run.checkpoints}` holds no whole one; the first is written after checkpoint.every",
        fix=f"phalanx train --resume {shlex.quote(str(run.path))}",
    )


def _no_such_file(path: Path) -> Finding:
    return Finding(
        slug="no-weights-file",
        what=f"there is no file `{path}`",
        why="its name is that of a file of weights",
        fix=f"ls {shlex.quote(str(path.parent))}",
    )


def _unknown_file(path: Path) -> Finding:
    return Finding(
        slug="weights-form",
        what=f"`{path.name}` is no file of weights that is known",
        why=f"its name ends in `{path.suffix}`; known: {', '.join(WEIGHT_FILES)}",
        fix="give a run, a checkpoint folder or such a file",
    )


def _other_weights(path: Path, own: Weights, wanted: str | None) -> Finding:
    return Finding(
        slug="other-weights",
        what=f"`{path}` holds {'the average' if own == 'average' else 'the weights'}, --weights "
        f"{wanted} was given",
        why=f"a checkpoint keeps the weights in {MODEL_FILE} and their average in {EMA_FILE}",
        fix=f"--weights {own}",
    )


def _no_recipe(path: Path, command: str) -> Finding:
    return Finding(
        slug="recipe-unknown",
        what=f"`{path.name}` does not say which recipe it was trained with",
        why="files that Phalanx has exported say it, and checkpoints do; weights alone do not",
        fix=f"{command} {shlex.quote(str(path))} --recipe NAME [key=value]",
    )


def _recipe_elsewhere(path: Path, recipe: str, command: str) -> Finding:
    file, _, name = recipe.rpartition(":")
    return Finding(
        slug="recipe-elsewhere",
        what=f"the recipe of `{path.name}` is not on this machine: no file `{file}`",
        why=f"it was trained with recipe = {recipe}; a checkpoint carries its job and options, "
        "not code",
        fix=f"bring the file, then {command} {shlex.quote(str(path))} --recipe FILE.py:{name}",
    )
