"""What a recipe writes for other tools: beside each checkpoint and at the end. What is written when
asked for is the package `exporter`.

A recipe writes into a folder of its own and gets tensors that are read when it looks them up, so
that exporting needs the memory of what the recipe holds at a time. What fails here is said and
costs nobody a checkpoint or a finished run.
"""

from __future__ import annotations

import json
import shutil
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from phalanx.engine.model.tensor_file import TensorFile
from phalanx.engine.process.failure import own_line
from phalanx.errors import Finding, UserError
from phalanx.job.schema import Job
from phalanx.recipe.exporting import Exporting
from phalanx.recipe.interface import Recipe
from phalanx.recipe.loading import load_recipe
from phalanx.run.checkpoints import (
    EMA_FILE,
    MANIFEST_FILE,
    MODEL_FILE,
    STATE_FILE,
    best_good,
    folder_bytes,
)
from phalanx.run.directory import RunDirectory, new_folder
from phalanx.run.event_kinds import Exported, FindingMade
from phalanx.run.events import EventWriter


class CheckpointTensors(Mapping[str, Tensor]):
    """The weights of a checkpoint under the model's own names, each read when it is looked up. Tied
    weights are there under all their names."""

    def __init__(self, checkpoint: Path, *, is_average: bool) -> None:
        self._path = checkpoint / (EMA_FILE if is_average else MODEL_FILE)
        self._file = TensorFile(self._path)
        state = json.loads((checkpoint / STATE_FILE).read_text(encoding="utf-8"))
        stored = list(self._file.names)
        self._stored = {name: name for name in stored}
        self._stored |= {a: name for a, name in state["aliases"].items() if name in stored}

    def __getitem__(self, name: str) -> Tensor:
        return self._file.read(self._stored[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)


def is_average_used(job: Job) -> bool:
    """Whether the weights that are evaluated, and then exported, are the average."""
    return job.ema.decay is not None and job.ema.evaluate


def export_beside(recipe: Recipe, checkpoint: Path, *, is_average: bool) -> list[Finding]:
    """Let the recipe write its files into a checkpoint that is not finished yet. They go through a
    folder of their own: none may take the name of one of the checkpoint's."""
    if not isinstance(recipe, Exporting):
        return []
    apart = checkpoint / ".export"
    apart.mkdir()
    try:
        tensors = CheckpointTensors(checkpoint, is_average=is_average)
        recipe.export(tensors, apart, "checkpoint")
        taken = [p for p in apart.iterdir() if _is_taken(checkpoint / p.name)]
        for path in apart.iterdir():
            if path not in taken:
                path.rename(checkpoint / path.name)
        return [_name_taken(recipe, path.name) for path in taken]
    except Exception as error:
        found = findings_of_error(error, recipe, "checkpoint")
        return [replace(finding, severity="warning") for finding in found]
    finally:
        shutil.rmtree(apart, ignore_errors=True)


def _is_taken(path: Path) -> bool:
    return path.exists() or path.name == MANIFEST_FILE


def export_final(run: RunDirectory, job: Job, events: EventWriter) -> None:
    """Let the recipe write `final_model/` from the best checkpoint; the first rank does, once the
    others are free to leave."""
    recipe = load_recipe(job.recipe, job.options)
    if not isinstance(recipe, Exporting):
        return
    started = time.perf_counter()
    saved, findings = best_good(run.checkpoints)
    if saved is not None:
        is_average = is_average_used(job) and saved.state.get("ema") is not None
        tensors = CheckpointTensors(saved.path, is_average=is_average)
        found = _write_folder(recipe, tensors, run.final_model, "final")
        findings += [
            replace(f, severity="warning", fix=f"{f.fix}; then `phalanx train --resume {run.path}`")
            for f in found
            if f.slug != "export-nothing"  # a recipe may have nothing to write here
        ]
        if not found:
            events.write(
                Exported(
                    path=run.final_model.name,
                    step=saved.step,
                    bytes=folder_bytes(run.final_model),
                    seconds=round(time.perf_counter() - started, 6),
                )
            )
    for finding in findings:
        events.write(FindingMade(finding=finding))


def _write_folder(
    recipe: Exporting, tensors: CheckpointTensors, folder: Path, form: str
) -> list[Finding]:
    """Make a folder whole or not at all."""
    try:
        with new_folder(folder) as temporary:
            recipe.export(tensors, temporary, form)
            if not any(temporary.iterdir()):
                raise UserError(nothing_written(recipe, form))
    except Exception as error:
        return findings_of_error(error, recipe, form)
    return []


def findings_of_error(error: Exception, recipe: Recipe | Exporting, form: str) -> list[Finding]:
    """What stopped a form from being written."""
    if isinstance(error, UserError):
        return error.findings
    traceback.print_exception(error)  # into the rank's log
    return [
        Finding(
            slug="export-failed",
            what=f"the form `{form}` was not written: {type(error).__name__}: {str(error)[:600]}",
            why=own_line(error),
            fix=f"mend {type(recipe).__name__}.export",
        )
    ]


def nothing_written(recipe: Recipe | Exporting, form: str) -> Finding:
    """A recipe that left its folder empty."""
    return Finding(
        slug="export-nothing",
        what=f"the recipe wrote no file for the form `{form}`",
        why=f"{type(recipe).__name__}.export(tensors, folder, {form!r}) left the folder empty",
        fix="--to safetensors",
    )


def _name_taken(recipe: Exporting, name: str) -> Finding:
    return Finding(
        slug="export-name",
        what=f"the recipe's `{name}` is not kept beside the checkpoint",
        why=f"{type(recipe).__name__}.export gives it a name of the checkpoint's own files",
        fix="another name for it where form is `checkpoint`",
        severity="warning",
    )
