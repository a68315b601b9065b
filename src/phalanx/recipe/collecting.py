"""Optional interface: data that the recipe makes itself, for `phalanx recipes collect`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from pydantic import BaseModel

from phalanx.recipe.optional import OptionalInterface


class Collected(NamedTuple):
    """What `phalanx recipes collect` has made."""

    path: Path
    """The folder or file that `data=` of the recipe takes."""
    said: Sequence[str] = ()
    """Lines about it: how many episodes, how many of them good."""


class CollectingData(OptionalInterface):
    """A recipe that makes its own data."""

    Collecting: ClassVar[type[BaseModel] | None] = None
    """What `phalanx recipes collect` may be told: `Options` of its own. None: it collects nothing.
    """

    @classmethod
    def collect(cls, settings: Any, out: Path | None) -> Collected:
        """Make data for this recipe as `settings`, a `Collecting`, asks: into a new folder `out`,
        or where the recipe looks for it by itself. Raises UserError where something is missing."""
        raise NotImplementedError(f"{cls.__name__}.collect is not written")


def collecting_settings(recipe: type) -> type[BaseModel] | None:
    """Return the settings that `recipe.collect` takes; None where it collects nothing."""
    return recipe.Collecting if issubclass(recipe, CollectingData) else None
