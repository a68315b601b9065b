"""All that a recipe imports of Phalanx."""

from phalanx.errors import Finding, UserError, did_you_mean, format_seconds
from phalanx.recipe import keys
from phalanx.recipe.attention import attend_causally
from phalanx.recipe.benchmarking import (
    Benchmarked,
    Benchmarking,
    BenchmarkSettings,
    TaskResult,
)
from phalanx.recipe.collecting import Collected, CollectingData
from phalanx.recipe.exporting import Exporting
from phalanx.recipe.files import new_file
from phalanx.recipe.films import encode_film, missing_film_package
from phalanx.recipe.graphs import Exported, ExportingGraphs
from phalanx.recipe.interface import Batch, Data, Epoch, Options, Recipe, Rows, Split, Term
from phalanx.recipe.listing import first_few
from phalanx.recipe.pretrained import PretrainedWeights, Stored
from phalanx.recipe.progress import report
from phalanx.recipe.rollouts import roll_out, usable_cores
from phalanx.recipe.showing import Media, Sample, Showing
from phalanx.recipe.signing import Portable, sign_file
from phalanx.recipe.tensors import Tensors
from phalanx.run.cache import cache_folder
from phalanx.run.directory import new_folder, write_atomic
from phalanx.run.guards import find_inside, link_or_copy, rename_new

__all__ = [
    "Batch",
    "BenchmarkSettings",
    "Benchmarked",
    "Benchmarking",
    "Collected",
    "CollectingData",
    "Data",
    "Epoch",
    "Exported",
    "Exporting",
    "ExportingGraphs",
    "Finding",
    "Media",
    "Options",
    "Portable",
    "PretrainedWeights",
    "Recipe",
    "Rows",
    "Sample",
    "Showing",
    "Split",
    "Stored",
    "TaskResult",
    "Tensors",
    "Term",
    "UserError",
    "attend_causally",
    "cache_folder",
    "did_you_mean",
    "encode_film",
    "find_inside",
    "first_few",
    "format_seconds",
    "keys",
    "link_or_copy",
    "missing_film_package",
    "new_file",
    "new_folder",
    "rename_new",
    "report",
    "roll_out",
    "sign_file",
    "usable_cores",
    "write_atomic",
]
