"""Writes a trained model for other tools: which one and where to; a child process does the rest."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Unpack

from phalanx.codec import to_json
from phalanx.errors import Finding, UserError, errors_of
from phalanx.job import Override
from phalanx.prepare.engine_child import require_answer
from phalanx.prepare.trained_model import Trained, Weights, Which, find_trained
from phalanx.recipe.loading import recipe_file
from phalanx.recipe.questions import ExportAnswer, ExportQuestion
from phalanx.run.weights_file import SCHEMA_VERSION
from phalanx.verbs.evaluate import evaluate_trained

_TIMEOUT_S = 4 * 3600.0  # merging and writing a large model takes as long as its disk
_NOT_BUILT = "tensorrt-missing"  # what is there is whole, and less than was asked for


@dataclass(frozen=True)
class Settings:
    """How a model is exported."""

    half: bool = False
    int8: bool = False
    dynamic: bool = False
    batch: int = 1
    opset: int | None = None

    def words(self) -> list[str]:
        """The options that are not as usual, for the folder's name and for messages."""
        chosen = [name for name in ("half", "int8", "dynamic") if getattr(self, name)]
        chosen += [f"batch{self.batch}"] if self.batch != 1 else []
        return chosen + ([f"opset{self.opset}"] if self.opset is not None else [])


@dataclass(frozen=True)
class Export:
    """What was written for other tools."""

    folder: Path
    form: str
    recipe: str
    title: str
    """What it was made of, in words."""
    source: Path
    """The weights it was made of."""
    checkpoint: Path | None
    """The checkpoint that they are in, where they are."""
    weights: Weights
    """Whether it is the weights themselves or their average."""
    files: dict[str, int]
    """Each file with its size in bytes."""
    source_bytes: int
    compared: dict[str, Any] = field(default_factory=dict)
    """Each output beside PyTorch's (`differences`), on how many `samples`, and the `torch_ms` and
    `exported_ms` of a batch; empty where nothing runs."""
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    """Of int8: figures of the test split `before` and `after`."""
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether all that was asked for is there."""
        return not errors_of(self.findings)

    def to_json(self) -> dict[str, Any]:
        unsaid = ("recipe", "title", "source_bytes")
        return {name: value for name, value in to_json(self).items() if name not in unsaid}


def export_trained(
    reference: str | None,
    overrides: Sequence[Override | str] = (),
    *,
    form: str = "safetensors",
    settings: Settings | None = None,
    out: Path | None = None,
    say: Callable[[str], None] = lambda phase: None,
    **which: Unpack[Which],
) -> Export:
    """Export a run (the newest if none is named), a checkpoint folder or a file of weights; raises
    UserError. An engine that cannot be built here leaves its ONNX file, and an error among the
    findings."""
    settings = settings or Settings()
    _check_settings(form, settings)
    trained = find_trained(reference, overrides, command="phalanx export", **which)
    if trained.file.suffix == ".onnx":
        raise UserError(_exported_already(trained.file))
    folder = out if out is not None else _folder_for(trained, form, settings)
    folder = folder.resolve() if folder.is_symlink() else folder  # the link itself is the user's
    _require_room(folder)
    say(f"writing {form} and running it" if form in _GRAPHS else f"writing {form}")
    report, findings = _ask(trained, form, settings, folder)
    metrics: dict[str, dict[str, float]] = {}
    if settings.int8:
        say("evaluating both on the test split")
        metrics, problems = _metrics(trained, folder, overrides)
        findings += problems
    return Export(
        folder,
        form,
        trained.job.recipe,
        trained.title,
        trained.file,
        trained.checkpoint.path if trained.checkpoint is not None else None,
        trained.weights,
        files={
            path.relative_to(folder).as_posix(): path.stat().st_size
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        },
        source_bytes=trained.file.stat().st_size,
        compared=_compared(report),
        metrics=metrics,
        findings=findings,
    )


def _compared(report: ExportAnswer) -> dict[str, Any]:
    record = to_json(report) if report.samples else {}
    return {name: value for name, value in record.items() if name != "findings"}


_GRAPHS = ("onnx", "torchscript", "tensorrt")


def _ask(
    trained: Trained, form: str, settings: Settings, folder: Path
) -> tuple[ExportAnswer, list[Finding]]:
    return require_answer(
        "export",
        ExportQuestion(
            recipe=trained.job.recipe,
            options=trained.job.options,
            file=trained.file,
            form=form,
            folder=folder.absolute(),
            record=_record(trained),
            is_half=settings.half,
            is_int8=settings.int8,
            is_dynamic=settings.dynamic,
            batch=settings.batch,
            opset=settings.opset,
        ),
        ExportAnswer,
        timeout_s=_TIMEOUT_S,
        silent=partial(_silent, trained, form),
        notes=[*trained.findings, *trained.changes()],
        tolerated=_NOT_BUILT,
        uses_gpu=form == "tensorrt",
    )


def _record(trained: Trained) -> dict[str, Any]:
    """What the files say of themselves: enough to evaluate them anywhere."""
    try:
        own = version("phalanx")
    except PackageNotFoundError:
        own = "unknown"
    return {
        "schema_version": SCHEMA_VERSION,
        "phalanx_version": own,
        "recipe": trained.job.recipe,
        "options": trained.job.options,
        "recipe_fingerprint": trained.trained_recipe,
        "job_hash": trained.job_hash,
        "step": trained.step,
        "weights": trained.weights,
        "metrics": dict(trained.recorded) if trained.recorded is not None else None,
    }


def _metrics(
    trained: Trained, folder: Path, overrides: Sequence[Override | str]
) -> tuple[dict[str, dict[str, float]], list[Finding]]:
    """What int8 costs, on the whole test split."""
    try:
        after = evaluate_trained(str(folder / "model.onnx"), overrides).metrics
        before = trained.recorded or evaluate_trained(str(trained.file), overrides).metrics
    except UserError as error:
        note = Finding(
            slug="int8-not-evaluated",
            what="what int8 costs is not measured",
            why="; ".join(finding.what for finding in error.findings),
            fix=f"phalanx evaluate {shlex.quote(str(folder / 'model.onnx'))}",
            severity="warning",
        )
        return {}, [note]
    return {"before": dict(before), "after": after}, []


def _folder_for(trained: Trained, form: str, settings: Settings) -> Path:
    words = [form, *settings.words()]
    if trained.checkpoint is None:
        return trained.file.parent / "-".join([trained.file.stem, *words])
    name = "-".join([trained.checkpoint.path.name, *words])
    if trained.run is not None:
        return trained.run.exports / name
    return trained.checkpoint.path.parent / name


def _check_settings(form: str, settings: Settings) -> None:
    """Options that the form does not have, all at once."""
    problems = []
    wrong = [
        name
        for name, forms in (
            ("half", (*_GRAPHS, "safetensors")),
            ("int8", ("onnx", "tensorrt")),
            ("dynamic", _GRAPHS),
            ("opset", ("onnx", "tensorrt")),
        )
        if getattr(settings, name) and form not in forms
    ]
    wrong += ["batch"] if settings.batch != 1 and form not in _GRAPHS else []
    if wrong:
        flags = " and ".join(f"--{name}" for name in wrong)
        problems.append(
            Finding(
                slug="export-option",
                what=f"{flags} mean nothing for the form `{form}`",
                why="--half is for safetensors, onnx, torchscript and tensorrt, --dynamic and "
                "--batch for the last three, --int8 and --opset for onnx and tensorrt",
                fix=f"--to onnx {flags.replace(' and ', ' ')}",
            )
        )
    if settings.half and settings.int8:
        problems.append(
            Finding(
                slug="export-two-precisions",
                what="--half and --int8 ask for two precisions",
                why="both are on the command line; a file has one",
                fix="--half, or --int8",
            )
        )
    if problems:
        raise UserError(problems)


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


def _exported_already(path: Path) -> Finding:
    return Finding(
        slug="export-of-onnx",
        what=f"`{path.name}` is an exported file already",
        why="exports are made of weights: a run, a checkpoint, a .safetensors or a .pt file",
        fix="phalanx export RUN --to onnx",
    )


def _silent(trained: Trained, form: str, why: str) -> Finding:
    return Finding(
        slug="export-silent",
        what=f"the form `{form}` was not written",
        why=f"the child process that writes it ended early: {why}",
        fix=f"look at the recipe's `export` in {recipe_file(trained.job.recipe)}",
    )
