"""All that a recipe imports of Phalanx."""

from phalanx.errors import Finding
from phalanx.recipe import keys
from phalanx.recipe.interface import Batch, Data, Options, Recipe, Split, Term
from phalanx.recipe.tensors import Tensors

__all__ = ["Batch", "Data", "Finding", "Options", "Recipe", "Split", "Tensors", "Term", "keys"]
