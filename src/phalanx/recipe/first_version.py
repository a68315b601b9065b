"""Recipes written for version 0.1, where the methods of optional interfaces stood on `Recipe`."""

from __future__ import annotations

from phalanx.errors import Finding
from phalanx.recipe.benchmarking import Benchmarking
from phalanx.recipe.collecting import CollectingData
from phalanx.recipe.exporting import Exporting
from phalanx.recipe.graphs import ExportingGraphs
from phalanx.recipe.optional import OptionalInterface, defined_members, members_of
from phalanx.recipe.pretrained import PretrainedWeights
from phalanx.recipe.showing import Showing
from phalanx.recipe.signing import Portable

INTERFACES: tuple[type[OptionalInterface], ...] = (
    Benchmarking,
    CollectingData,
    Exporting,
    ExportingGraphs,
    Portable,
    PretrainedWeights,
    Showing,
)
"""What a recipe may implement beside `Recipe`."""


class FirstVersion:
    """Base of `Recipe` with the defaults of every interface: a recipe of version 0.1 may call them,
    with `super()` as well."""


for _interface in INTERFACES:
    for _name, _default in members_of(_interface).items():
        setattr(FirstVersion, _name, _default)


def find_deprecated(recipe: type) -> list[Finding]:
    """Report what a class and those it derives from should inherit."""
    kinds = [kind for kind in recipe.__mro__ if FirstVersion in kind.__mro__[1:]]
    missing = {kind: _members_without_base(kind) for kind in kinds}
    return [
        _missing_bases(kind, own)
        for kind in kinds
        if (
            own := {
                interface: names
                for interface, names in missing[kind].items()
                if not any(interface in missing.get(base, {}) for base in kind.__bases__)
            }
        )
    ]


def _members_without_base(kind: type) -> dict[type, list[str]]:
    return {
        interface: names
        for interface in INTERFACES
        if interface not in kind.__mro__ and (names := defined_members(kind, interface))
    }


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
