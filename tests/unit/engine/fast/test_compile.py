"""Alike blocks are compiled once, others all together; what cannot be compiled says so."""

import copy
from itertools import pairwise

import pytest
import torch
from torch import nn

from phalanx.engine.fast import compile as speed
from phalanx.engine.process.group import Process
from phalanx.engine.strategies.single import Single
from phalanx.recipe import Recipe, Term


class Part(nn.Module):
    def __init__(self, width, next_width):
        super().__init__()
        self.line, self.norm = nn.Linear(width, next_width), nn.BatchNorm1d(next_width)

    def forward(self, x):
        return self.norm(self.line(x)).tanh()


class Net(nn.Module):
    def __init__(self, widths, beside):
        super().__init__()
        around = range(widths[-1], widths[-1] + beside + 1)
        self.parts = nn.Sequential(*(Part(a, b) for a, b in pairwise(widths)))
        self.beside = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(around))

    def forward(self, x):
        x = self.parts(x)
        for layer in self.beside:
            x = layer(x)
        return x


class Squares(Recipe):
    def model(self):
        torch.manual_seed(0)
        return Net(self.widths, self.beside)

    def loss(self, model, batch, keys):
        return {"square": Term(model(batch).square().sum(), len(batch))}


def make(widths, backend, beside=0):
    recipe = Squares(Squares.Options())
    recipe.widths, recipe.beside = widths, beside
    model = recipe.model()
    compiler = speed.Compiler(is_deterministic=True, backend=backend)
    compiler.compile_blocks(recipe, model, is_checkpointed=False)
    compiler.keep_blocks_apart()
    strategy = Single(recipe, model, Process(0, 1, torch.device("cpu"), "none"))
    compiler.compile_loss(strategy)
    return recipe, strategy, compiler


def run(strategy, batch):
    strategy.loss(batch, torch.arange(len(batch)))["square"].sum.backward()


@pytest.mark.parametrize(
    ("widths", "graphs"),
    [
        # The first block's input needs no gradient: it has code of its own.
        pytest.param((4, 4, 4, 4, 4), 3, id="alike: the first block, the others, the loss"),
        pytest.param((2, 3, 4, 5, 6), 1, id="different: all at once"),
    ],
)
def test_alike_blocks_are_compiled_once_and_the_model_stays_the_same(widths, graphs):
    seen = []

    def backend(graph, inputs):
        seen.append(graph)
        return graph.forward

    recipe, strategy, compiler = make(widths, backend)
    batch = torch.randn(5, widths[0])
    before = copy.deepcopy(strategy.model.state_dict())
    assert compiler.try_out(strategy, batch, lambda batch: run(strategy, batch)) == []
    assert len(seen) == graphs
    after = strategy.model.state_dict()
    assert list(after) == list(recipe.model().state_dict())
    assert all(torch.equal(after[name], before[name]) for name in before), "statistics are back"
    assert all(parameter.grad is None for parameter in strategy.model.parameters())
    copied = copy.deepcopy(strategy.model)
    nn.init.zeros_(copied.parts[0].line.weight)
    assert not torch.equal(copied(batch), strategy.model(batch)), "a copy has its own weights"


def test_many_layers_beside_the_blocks_are_not_many_sizes():
    """torch.compile runs those of its own kinds through one function, whose limit is one for all;
    more than that are here."""
    _, strategy, compiler = make((4, 4, 4), lambda graph, inputs: graph.forward, beside=10)
    run(strategy, torch.randn(5, 4))
    assert compiler.find_changing_shapes(strategy.process) == []


def test_what_cannot_be_compiled_trains_as_it_is():
    def backend(graph, inputs):
        raise ValueError("no code for this")

    recipe, strategy, compiler = make((4, 4, 4), backend)
    batch = torch.randn(5, 4)
    (finding,) = compiler.try_out(strategy, batch, lambda batch: run(strategy, batch))
    assert finding.slug == "compile-failed" and "no code for this" in finding.why
    run(strategy, batch)
    eager = Single(recipe, recipe.model(), strategy.process)
    run(eager, batch)
    for ours, theirs in zip(strategy.model.parameters(), eager.model.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)
