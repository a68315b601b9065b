"""Optional interface: pretrained weights, read from files instead of built."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from phalanx.errors import Finding
from phalanx.recipe.optional import OptionalInterface


class Stored(NamedTuple):
    """Where a tensor lies on disk: a safetensors file, and its name in there."""

    file: Path
    name: str


class PretrainedWeights(OptionalInterface):
    """A recipe whose model starts from weights in files."""

    def weights(self) -> Mapping[str, Stored]:
        """Return where pretrained weights are read from, by the names that parameters and buffers
        have in the model. What is not named keeps the values that `model` gave it. Every rank asks,
        and reads only its own part. Frozen parameters among them are not saved again in
        checkpoints."""
        return {}

    def check_weights(self) -> list[Finding]:
        """Return what stands between this recipe and its pretrained weights: asked before training,
        not before planning, which needs none."""
        return []

    def weights_file(self, path: Path) -> Path | None:
        """Convert a file of weights in another tool's own format to a safetensors file with the
        names of this model, and return that file; None: a format that the recipe does not know.
        Nothing in it is run."""
        return None


def stored_weights(recipe: object) -> Mapping[str, Stored]:
    """Return where a recipe's pretrained weights lie; empty where it has none."""
    return recipe.weights() if isinstance(recipe, PretrainedWeights) else {}
