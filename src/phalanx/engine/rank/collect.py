"""Makes data for a recipe, as the recipe itself knows how: `phalanx recipes collect`. Runs in a
process of its own, because the recipe's code does."""

from __future__ import annotations

import json
import traceback
from pathlib import Path

from phalanx.codec import from_json, to_json
from phalanx.engine.process.failure import own_line
from phalanx.errors import Finding, UserError
from phalanx.recipe.collecting import CollectingData, collecting_settings
from phalanx.recipe.loading import builtin_recipes, judge_options, load_recipe_class
from phalanx.recipe.questions import CollectAnswer, CollectQuestion


def run_collect(request_file: Path, result_file: Path) -> None:
    """Answer a `CollectQuestion`; never raises for the user's mistakes."""
    question = from_json(CollectQuestion, json.loads(request_file.read_text(encoding="utf-8")))
    try:
        answer = _collect(question)
    except UserError as error:
        answer = CollectAnswer(findings=error.findings)
    result_file.write_text(json.dumps(to_json(answer)), encoding="utf-8")


def _collect(question: CollectQuestion) -> CollectAnswer:
    recipe = load_recipe_class(question.recipe)
    if not issubclass(recipe, CollectingData) or recipe.Collecting is None:
        raise UserError(_collects_nothing(question.recipe))
    settings = judge_options(recipe.Collecting, question.settings)
    try:
        done = recipe.collect(settings, question.out)
    except UserError:
        raise
    except Exception as error:  # the recipe's own code, and a simulator's
        traceback.print_exception(error)
        raise UserError(_failed(recipe.__name__, error)) from error
    return CollectAnswer(path=Path(done.path), said=[str(line) for line in done.said])


def _collects_nothing(spec: str) -> Finding:
    able = [name for name in builtin_recipes() if collecting_settings(load_recipe_class(name))]
    return Finding(
        slug="collects-nothing",
        what=f"the recipe `{spec}` collects no data of its own",
        why=f"recipes that do: {', '.join(able) or 'none'}",
        fix=f"phalanx recipes show {spec} says what data it takes",
    )


def _failed(recipe: str, error: Exception) -> Finding:
    return Finding(
        slug="collect-failed",
        what=f"collecting failed: {type(error).__name__}: {str(error)[:600]}",
        why=own_line(error),
        fix=f"mend {recipe}.collect",
    )
