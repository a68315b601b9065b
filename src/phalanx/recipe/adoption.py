"""Recipes written for version 0.1, which defined the methods of optional interfaces on `Recipe`."""

from __future__ import annotations

from phalanx.errors import Finding
from phalanx.recipe.benchmarking import Benchmarking
from phalanx.recipe.collecting import CollectingData
from phalanx.recipe.exporting import Exporting
from phalanx.recipe.graphs import ExportingGraphs
from phalanx.recipe.pretrained import PretrainedWeights
from phalanx.recipe.showing import Showing
from phalanx.recipe.signing import Portable

INTERFACES = (
    Benchmarking,
    CollectingData,
    Exporting,
    ExportingGraphs,
    Portable,
    PretrainedWeights,
    Showing,
)
"""What a recipe may implement beside `Recipe`."""


_ADOPTED = "_adopted_interfaces"


def adopt_interfaces(recipe: type) -> None:
    """Let a class inherit the interfaces whose methods it has, so that `isinstance` finds them and
    their other methods are there."""
    adopted = {
        interface: names
        for interface in INTERFACES
        if not issubclass(recipe, interface)
        and (names := [name for name in _members(interface) if hasattr(recipe, name)])
    }
    if adopted:
        # The attribute is read-only for type checkers alone.
        type.__setattr__(recipe, "__bases__", (*recipe.__bases__, *adopted))
        setattr(recipe, _ADOPTED, adopted)


def _members(interface: type) -> list[str]:
    return [name for name in vars(interface) if not name.startswith("_")]


def find_deprecated(recipe: type) -> list[Finding]:
    """Report what a class and those it derives from should inherit."""
    return [
        _missing_bases(kind, adopted)
        for kind in recipe.__mro__
        if (adopted := vars(kind).get(_ADOPTED))
    ]


def _missing_bases(recipe: type, adopted: dict[type, list[str]]) -> Finding:
    bases = ", ".join(interface.__name__ for interface in adopted)
    names = ", ".join(f"`{name}`" for found in adopted.values() for name in found)
    return Finding(
        slug="recipe-interface",
        what=f"`{recipe.__name__}` defines {names} without inheriting from {bases}",
        why="these belong to optional interfaces since version 0.2; a recipe that derives from "
        "`Recipe` alone works as before and is deprecated",
        fix=f"from phalanx.recipe import {bases}; class {recipe.__name__}(Recipe, {bases})",
        severity="warning",
    )
