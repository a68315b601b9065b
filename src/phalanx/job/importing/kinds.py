"""Which tool some settings are for, by what they say, and the job that they become."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from phalanx.errors import Finding, UserError, did_you_mean
from phalanx.job.importing import accelerate, command, plain_yaml, trainer, ultralytics
from phalanx.job.importing.translation import Line, Translation
from phalanx.job.load import load_job
from phalanx.job.origin import show
from phalanx.job.read import read_text

KINDS = {
    "trainer": "Hugging Face's TrainingArguments, as JSON",
    "accelerate": "the file of `accelerate config`",
    "deepspeed": "DeepSpeed's JSON file",
    "ultralytics": "Ultralytics' args.yaml",
    "yaml": "a YAML with sections such as `dataloader` and `optimizer`",
    "command": "a line that begins with torchrun, accelerate launch or deepspeed",
}
# Keys that only such a file has.
_SIGNS = {
    "deepspeed": ("zero_optimization", "train_micro_batch_size_per_gpu"),
    "trainer": ("per_device_train_batch_size", "lr_scheduler_type"),
    "accelerate": ("distributed_type", "compute_environment"),
    "ultralytics": ("imgsz", "close_mosaic"),
    "yaml": ("dataloader", "optimizer", "training", "trainer"),
}
_TRANSLATE: Mapping[str, Callable[[Translation], None]] = {
    "trainer": trainer.translate,
    "accelerate": accelerate.translate,
    "ultralytics": ultralytics.translate,
    "yaml": plain_yaml.translate,
    "command": command.translate,
}


@dataclass(frozen=True)
class Imported:
    """Settings of another tool as a job."""

    kind: str
    place: str
    job: dict[str, Any]
    """Values by dotted key; without a recipe where the settings do not say one."""
    lines: list[Line]
    script: list[str] = field(default_factory=list)
    """What a command line starts, with its own words; `phalanx launch` starts it as it is."""


def import_file(path: Path, kind: str | None = None) -> Imported:
    """Read a file of another tool; raises UserError when it is of no known kind."""
    settings = _read(path)
    kind = kind or _kind_of(settings)
    if kind not in KINDS or kind == "command":
        raise UserError(_unknown_kind(path, settings, kind))
    if kind == "deepspeed":
        return _deepspeed(path)
    made = Translation(settings, str(path))
    _TRANSLATE[kind](made)
    return _imported(kind, made)


def _deepspeed(path: Path) -> Imported:
    """A job names DeepSpeed's file and takes it in whenever it is read."""
    job = {"strategy": "deepspeed", "deepspeed.config": str(path)}
    loaded = load_job({"recipe": "any", **job})
    lines = [
        Line(origin.key, "taken", f"{key} = {show(loaded.value(key))}", "read with the job")
        for key, origin in loaded.origins.items()
        if origin.kind == "deepspeed" and origin.key
    ]
    named = Line(path.name, "taken", f"deepspeed.config = {show(str(path))}", "and what is left")
    return Imported("deepspeed", str(path), job, [*lines, named])


def import_command(words: Sequence[str]) -> Imported:
    """Read a command line that starts training."""
    settings, script, arguments = command.read_command(words)
    made = Translation({**settings, "script": arguments}, shlex.join(words))
    command.translate(made)
    file = settings.get("config_file")
    found = _imported("command", made, script)
    if isinstance(file, str) and Path(file).is_file():
        of_file = import_file(Path(file), "accelerate")
        return Imported(
            found.kind, found.place, of_file.job | found.job, of_file.lines + found.lines, script
        )
    return found


def _imported(kind: str, made: Translation, script: Sequence[str] = ()) -> Imported:
    job = {"recipe": made.recipe, **made.job} if made.recipe else made.job
    return Imported(kind, made.place, job, made.lines, list(script))


def _read(path: Path) -> dict[str, Any]:
    text = read_text(path)
    try:
        found = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError) as error:
        problem = " ".join(str(error).split())[:300]
        raise UserError(
            Finding(
                slug="import-unreadable",
                what=f"`{path}` is neither JSON nor YAML",
                why=problem,
                fix=f"python3 -m json.tool {shlex.quote(str(path))}",
            )
        ) from None
    if not isinstance(found, dict):
        raise UserError(_unknown_kind(path, {}, None))
    return {str(key): value for key, value in found.items()}


def _kind_of(settings: Mapping[str, Any]) -> str | None:
    return next(
        (kind for kind, signs in _SIGNS.items() if any(sign in settings for sign in signs)), None
    )


def _unknown_kind(path: Path, settings: Mapping[str, Any], kind: str | None) -> Finding:
    known = "; ".join(f"{name}: {meaning}" for name, meaning in KINDS.items() if name != "command")
    if kind is not None:
        what = f"settings of the kind `{kind}` are not known{did_you_mean(kind, KINDS)}"
    else:
        what = f"`{path}` is of no kind that is known"
    return Finding(
        slug="import-kind",
        what=what,
        why=f"its keys are {show(', '.join(list(settings)[:12]) or 'none')}; known are {known}",
        fix=f"phalanx import {shlex.quote(str(path))} --kind yaml",
    )
