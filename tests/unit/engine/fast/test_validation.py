"""What differs from the recipe as it is written is dropped, and what does not stays."""

import copy
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from phalanx.engine.data.micro_batches import MicroBatch
from phalanx.engine.fast import compile as speed
from phalanx.engine.fast.validation import FastPath
from phalanx.engine.process.group import Process
from phalanx.engine.strategies.precision import Precision
from phalanx.engine.strategies.single import Single
from phalanx.planner.schema.plan import Alternative, Decision
from phalanx.recipe import Recipe, Term
from tests.fixtures.plans import plan_with

CPU = torch.device("cpu")
PLAN = plan_with(
    compile=Decision("on", "compile = on"),
    compared_with_eager=True,
    samples_per_s=3000.0,
    alternatives=[
        Alternative(choice="compile=off", samples_per_s=1000.0, memory_bytes=None, why_not="slower")
    ],
)


class Part(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        return self.drop(self.norm(self.conv(x)).tanh())


class Images(Recipe):
    dropout = 0.0

    def model(self):
        torch.manual_seed(0)
        return nn.Sequential(*(Part(self.dropout) for _ in range(3)))

    def loss(self, model, batch, keys):
        return {"square": Term(model(batch).square().sum(), len(batch))}


def eager_code(graph, inputs):
    return graph.forward


def wrong_code(graph, inputs):
    """Three per mille more than it should be."""

    def run(*values):
        return [1.003 * out if out.requires_grad else out for out in graph.forward(*values)]

    return run


class Denoised(Images):
    """Draws noise in its loss, as a diffusion policy does."""

    def loss(self, model, batch, keys):
        noise = torch.randn_like(batch)
        return {"square": Term((model(batch + noise) - noise).square().sum(), len(batch))}


def make(backend, *, dropout=0.0, is_channels_last=False, recipe=Images):
    recipe = recipe(Images.Options())
    recipe.dropout = dropout
    precision = Precision("fp32", CPU, is_channels_last=is_channels_last)
    model = precision.lay_out(recipe.model())
    compiler = speed.Compiler(is_deterministic=True, backend=backend)
    compiler.compile_blocks(recipe, model, is_checkpointed=False)
    compiler.keep_blocks_apart()
    strategy = Single(recipe, model, Process(0, 1, CPU, "none"))
    compiler.compile_loss(strategy)
    strategy.precision = precision
    return strategy, compiler


def settle(strategy, compiler):
    torch.manual_seed(1)
    batch = torch.randn(4, 8, 6, 6)

    def run(micro_batch):
        torch.manual_seed(micro_batch.slot)
        converted = strategy.precision.convert_batch(micro_batch.batch)
        total = strategy.loss(converted, micro_batch.keys)["square"].sum
        total.backward()
        return {"square": total}

    micro_batch = MicroBatch(0, batch, torch.arange(4), {"*": 4.0})
    return FastPath(PLAN, strategy, compiler).settle(micro_batch, run)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("is_channels_last", [False, True])
def test_what_computes_the_same_stays_and_leaves_no_trace(dropout, is_channels_last):
    strategy, compiler = make(eager_code, dropout=dropout, is_channels_last=is_channels_last)
    before = copy.deepcopy(strategy.model.state_dict())
    assert settle(strategy, compiler) == []
    assert compiler.is_on and strategy.precision.is_channels_last == is_channels_last
    after = strategy.model.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before), "weights, statistics"
    assert all(parameter.grad is None for parameter in strategy.model.parameters())
    assert all(module.training for module in strategy.model.modules())
    weight = strategy.model[0].conv.weight
    assert weight.is_contiguous(memory_format=torch.channels_last) == is_channels_last


def test_noise_in_the_loss_is_no_difference():
    """Compiled code draws its own noise, and eager's for the comparison."""
    strategy, compiler = make("inductor", recipe=Denoised)
    torch.manual_seed(3)
    batch, keys = torch.randn(4, 8, 6, 6), torch.arange(4)
    assert settle(strategy, compiler) == [] and compiler.is_on
    drawn = []
    for is_on in (True, False):
        torch.manual_seed(5)
        with nullcontext() if is_on else compiler.paused():
            drawn.append(strategy.loss(batch, keys)["square"].sum.item())
    assert drawn[0] != pytest.approx(drawn[1], rel=1e-3), "what trains is not what was compared"


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_code_that_differs_is_dropped_and_says_what_that_costs(dropout):
    strategy, compiler = make(wrong_code, dropout=dropout, is_channels_last=True)
    ((rung, finding),) = settle(strategy, compiler)
    assert rung == "compile" and finding.slug == "fast-path-differs"
    assert not compiler.is_on
    assert strategy.precision.is_channels_last, "only what differs goes"
    assert "is allowed" in finding.why and "1,000 samples/s" in finding.why


def test_code_in_many_pieces_is_dropped(monkeypatch):
    monkeypatch.setattr(speed, "_BREAKS", 1)  # two kinds of code: the blocks, the loss
    strategy, compiler = make(eager_code)
    as_written = strategy.bare_loss.loss

    def loss(model, batch, keys):
        torch._dynamo.graph_break()
        batch = batch + 0
        torch._dynamo.graph_break()
        batch = batch + 0
        torch._dynamo.graph_break()
        return as_written(model, batch + 0, keys)

    strategy.bare_loss.loss = loss
    compiler.compile_loss(strategy)
    ((rung, finding),) = settle(strategy, compiler)
    assert rung == "compile" and finding.slug == "graph-breaks" and "3 of them" in finding.why
    assert not compiler.is_on


def test_more_shapes_than_there_is_code_for_are_noticed():
    strategy, compiler = make(eager_code)
    path = FastPath(PLAN, strategy, compiler)
    assert settle(strategy, compiler) == [] and path.watch() == []
    for size in range(3, 15):
        strategy.loss(torch.randn(2, 8, size, size), torch.arange(2))
    ((rung, finding),) = path.watch()
    assert rung == "compile" and finding.slug == "shapes-change"
    assert not compiler.is_on and path.watch() == []
