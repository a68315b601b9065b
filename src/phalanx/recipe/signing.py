"""Optional interface: options that checkpoints and exported files carry. Lets a file that a recipe
writes itself say which recipe and options it was trained with, as exported files do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phalanx.recipe.optional import OptionalInterface
from phalanx.run.weights_file import SCHEMA_VERSION, add_record

if TYPE_CHECKING:
    from phalanx.recipe.interface import Recipe


class Portable(OptionalInterface):
    """A recipe whose model depends on more than its options, such as the classes of its data."""

    def portable_options(self) -> Mapping[str, Any]:
        """Return the options beside those that were given with which `model` builds the same model
        where data and other files are not at hand. Checkpoints and exported files carry them."""
        return {}


def portable_options(recipe: Recipe) -> Mapping[str, Any]:
    """Return the options that files of this recipe carry beside those that were given."""
    return recipe.portable_options() if isinstance(recipe, Portable) else {}


def carried_options(recipe: Recipe) -> dict[str, Any]:
    """Return the options with which the model is built from nothing but its weights."""
    own: dict[str, Any] = json.loads(recipe.options.model_dump_json())
    return {**own, **portable_options(recipe)}


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
