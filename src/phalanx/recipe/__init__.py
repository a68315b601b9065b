"""All that a recipe imports of Phalanx."""

from phalanx.errors import Finding, UserError, did_you_mean
from phalanx.recipe import keys
from phalanx.recipe.attention import attend_causally
from phalanx.recipe.interface import (
    Batch,
    Benchmarked,
    BenchmarkSettings,
    Data,
    Epoch,
    Exported,
    Media,
    Options,
    Recipe,
    Rows,
    Sample,
    Split,
    Stored,
    TaskResult,
    Term,
)
from phalanx.recipe.signing import sign_file
from phalanx.recipe.tensors import Tensors
from phalanx.run.cache import cache_folder

__all__ = [
    "Batch",
    "BenchmarkSettings",
    "Benchmarked",
    "Data",
    "Epoch",
    "Exported",
    "Finding",
    "Media",
    "Options",
    "Recipe",
    "Rows",
    "Sample",
    "Split",
    "Stored",
    "TaskResult",
    "Tensors",
    "Term",
    "UserError",
    "attend_causally",
    "cache_folder",
    "did_you_mean",
    "keys",
    "sign_file",
]
