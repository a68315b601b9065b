"""All that a recipe imports of Phalanx."""

from phalanx.errors import Finding, UserError, did_you_mean
from phalanx.recipe import keys
from phalanx.recipe.attention import attend_causally
from phalanx.recipe.interface import (
    Batch,
    Data,
    Epoch,
    Media,
    Options,
    Recipe,
    Rows,
    Sample,
    Split,
    Stored,
    Term,
)
from phalanx.recipe.tensors import Tensors
from phalanx.run.cache import cache_folder

__all__ = [
    "Batch",
    "Data",
    "Epoch",
    "Finding",
    "Media",
    "Options",
    "Recipe",
    "Rows",
    "Sample",
    "Split",
    "Stored",
    "Tensors",
    "Term",
    "UserError",
    "attend_causally",
    "cache_folder",
    "did_you_mean",
    "keys",
]
