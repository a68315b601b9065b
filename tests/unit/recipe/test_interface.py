"""What a recipe gets for nothing: leaves, weights, defaults."""

from collections import namedtuple

import pytest
import torch
from pydantic import ValidationError

from phalanx.recipe import Options, Recipe
from phalanx.recipe.interface import count_samples, leaves

Pair = namedtuple("Pair", "left right")


def test_leaves_of_any_nesting_in_order():
    tree = {"a": [1, (2, 3)], "b": Pair(4, {"c": 5}), "d": [], "e": "text"}
    assert list(leaves(tree)) == [1, 2, 3, 4, 5, "text"]


def test_samples_are_counted_by_the_first_dimension_of_the_first_tensor():
    assert count_samples({"name": "x", "scale": torch.tensor(1.0), "x": torch.zeros(7, 3)}) == 7
    assert count_samples([[], (torch.zeros(2, 9),)]) == 2


def test_a_batch_without_tensors_asks_for_a_weight():
    with pytest.raises(TypeError, match="weight"):
        count_samples({"name": ["a", "b"]})


def test_the_default_weight_is_the_number_of_samples():
    assert Recipe(Options()).weight({"x": torch.zeros(5, 2)}) == 5.0


def test_optional_parts_have_defaults():
    recipe = Recipe(Options())
    assert recipe.groups(None) is None
    assert list(recipe.blocks(None)) == []
    assert recipe.example() is None
    assert recipe.check() == []


def test_options_refuse_unknown_keys_and_changes():
    class Mine(Options):
        width: int = 3
        """Channels."""

    with pytest.raises(ValidationError):
        Mine(height=3)
    with pytest.raises(ValidationError):
        Mine().width = 4
    assert Mine.model_fields["width"].description == "Channels."
