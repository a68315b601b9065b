"""Writes one form of a model into a folder that appears whole or not at all."""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from pickle import UnpicklingError  # what torch.load raises when it refuses a file
from typing import Any

from torch import Tensor

from phalanx.codec import from_json, to_json
from phalanx.engine.checkpoint.initial_weights import plain_file, unsafe_file
from phalanx.engine.checkpoint.recipe_files import findings_of_error, nothing_written
from phalanx.errors import Finding, UserError, did_you_mean
from phalanx.exporter.graphs import GRAPH_FORMS, write_graph
from phalanx.exporter.weights import open_tensors, write_weights
from phalanx.recipe.exporting import Exporting, export_forms
from phalanx.recipe.graphs import ExportingGraphs
from phalanx.recipe.interface import Recipe
from phalanx.recipe.loading import load_recipe
from phalanx.recipe.questions import ExportAnswer, ExportQuestion
from phalanx.recipe.signing import carried_options
from phalanx.run.directory import new_folder

PLAIN_FORM = "safetensors"
"""The weights alone; every recipe has it."""


def run_export(request_file: Path, result_file: Path) -> None:
    """Answer a request with a report; never raises for the user's mistakes."""
    request = from_json(ExportQuestion, json.loads(request_file.read_text(encoding="utf-8")))
    result_file.write_text(json.dumps(to_json(export_model(request))), encoding="utf-8")


def export_model(request: ExportQuestion) -> ExportAnswer:
    """Write what is asked for; the report says what came of it."""
    report = ExportAnswer()
    try:
        recipe = _load(request)
        request = replace(request, record=_carried(request, recipe))
    except UserError as error:
        report.findings += error.findings
        return report
    forms = {PLAIN_FORM, *GRAPH_FORMS, *export_forms(recipe)}
    if request.form not in forms:
        report.findings.append(_unknown_form(request, forms))
        return report
    try:
        with new_folder(request.folder, is_new=True) as temporary:
            _write(request, recipe, temporary, report)
            if not any(temporary.iterdir()):
                raise UserError(nothing_written(recipe, request.form))
    except Exception as error:
        report.findings += findings_of_error(error, recipe, request.form)
    return report


def _load(request: ExportQuestion) -> Recipe:
    """The recipe; for a file that takes samples of one shape, with options that give those."""
    recipe = load_recipe(request.recipe, request.options)
    is_one_shape = request.form in GRAPH_FORMS and not request.is_dynamic
    if is_one_shape and isinstance(recipe, ExportingGraphs) and recipe.one_shape:
        recipe = load_recipe(request.recipe, {**request.options, **recipe.one_shape})
    recipe.splits = ("test",)
    return recipe


def _carried(request: ExportQuestion, recipe: Recipe) -> dict[str, Any]:
    """The record with what builds the model where nothing but the file is; the figures of training
    belong to its own options."""
    is_as_trained = load_recipe(request.recipe, request.options).options == recipe.options
    metrics = request.record.get("metrics") if is_as_trained else None
    return {**request.record, "options": carried_options(recipe), "metrics": metrics}


def _write(request: ExportQuestion, recipe: Recipe, folder: Path, report: ExportAnswer) -> None:
    if isinstance(recipe, Exporting) and request.form in recipe.export_forms:
        recipe.export(_tensors(request.file, recipe), folder, request.form)
    elif request.form in GRAPH_FORMS:
        write_graph(request, recipe, folder, report)
    else:
        tensors = _tensors(request.file, recipe)
        write_weights(replace(request, file=plain_file(recipe, request.file)), tensors, folder)


def _tensors(path: Path, recipe: Recipe) -> Mapping[str, Tensor]:
    try:
        return open_tensors(plain_file(recipe, path))
    except UnpicklingError as error:
        raise UserError(unsafe_file(path, error)) from error
    except (OSError, ValueError, RuntimeError, AttributeError) as error:
        traceback.print_exception(error)
        raise UserError(
            Finding(
                slug="weights-unreadable",
                what=f"the weights in `{path}` cannot be read",
                why=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}",
                fix="bring the file again; it should be a .safetensors or a .pt of weights",
            )
        ) from error


def _unknown_form(request: ExportQuestion, forms: set[str]) -> Finding:
    return Finding(
        slug="unknown-form",
        what=f"the recipe has no form `{request.form}`{did_you_mean(request.form, forms)}",
        why=f"recipe = {request.recipe}; its forms: {', '.join(sorted(forms))}",
        fix=" or ".join(f"--to {name}" for name in sorted(forms)),
    )
