"""Which parts of a model count as its blocks."""

from torch import nn

from phalanx.engine.model.blocks import find_blocks
from phalanx.recipe import Options, Recipe


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)


class Stack(nn.Module):
    def __init__(self, count=3):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.layers = nn.ModuleList(Layer() for _ in range(count))
        self.head = nn.Linear(4, 10)


def names(model, recipe=None):
    return [name for name, _ in find_blocks(recipe or Recipe(Options()), model)]


def test_layers_of_a_list_are_blocks():
    assert names(Stack()) == ["layers.0", "layers.1", "layers.2"]


def test_the_outermost_repetition_counts():
    model = nn.Sequential(Stack(), Stack(), nn.Linear(4, 4))
    assert names(model) == ["0", "1"]


def test_plain_layers_and_a_single_one_are_no_blocks():
    assert names(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))) == []
    assert names(Stack(count=1)) == []


def test_a_recipe_names_its_own_blocks():
    class Own(Recipe):
        def blocks(self, model):
            return [model.head, model.layers]

    assert names(Stack(), Own(Options())) == ["head", "layers"]


def test_a_block_whose_weights_are_used_elsewhere_is_none():
    model = Stack()
    model.head.weight = model.layers[1].first.weight
    assert names(model) == ["layers.0", "layers.2"]
    model = Stack()
    model.layers[2] = model.layers[0]
    assert "layers.1" in names(model)
