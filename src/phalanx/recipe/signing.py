"""Lets a file that a recipe writes itself say which recipe and options it was trained with, as
those do that Phalanx exports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from phalanx.recipe.interface import Recipe
from phalanx.run.weights_file import SCHEMA_VERSION, add_record


def carried_options(recipe: Recipe) -> dict[str, Any]:
    """The options with which the model is built where nothing but its weights is at hand."""
    own: dict[str, Any] = json.loads(recipe.options.model_dump_json())
    return {**own, **recipe.portable_options()}


def sign_file(recipe: Recipe, file: Path) -> None:
    """Put a record into a .pt file: `phalanx evaluate` and `export` need no other word then."""
    add_record(
        file,
        {
            "schema_version": SCHEMA_VERSION,
            "recipe": recipe.spec,
            "options": carried_options(recipe),
        },
    )
