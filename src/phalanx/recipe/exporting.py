"""Optional interface: files for other tools, beside each checkpoint, at the end, and on demand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from phalanx.recipe.optional import OptionalInterface

if TYPE_CHECKING:
    from torch import Tensor


class Exporting(OptionalInterface):
    """A recipe that writes files for other tools."""

    export_forms: ClassVar[Mapping[str, str]] = {}
    """What `phalanx export --to` offers for this recipe: each name with its meaning."""

    def export(self, tensors: Mapping[str, Tensor], folder: Path, form: str) -> None:
        """Write what other tools read into a folder. `tensors` are those of a checkpoint, read when
        they are looked up. `form` is `checkpoint` (beside each checkpoint's own files, while
        training goes on: leave the model and global random numbers alone), `final` (at the end of
        training), or one of `export_forms`."""


def export_forms(recipe: object) -> Mapping[str, str]:
    """Return the forms that a recipe or its class adds to `phalanx export --to`."""
    if isinstance(recipe, type):
        return recipe.export_forms if issubclass(recipe, Exporting) else {}
    return recipe.export_forms if isinstance(recipe, Exporting) else {}
