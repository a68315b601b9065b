"""Steps that change nothing, where the device decides: what runs on CUDA, here on a CPU, whose
fused optimizers read the same flag."""

import math

import pytest
import torch
from torch import nn

from phalanx.engine.process.group import Process
from phalanx.engine.strategies.optimizers import make_optimizer
from phalanx.engine.strategies.precision import Precision
from phalanx.engine.strategies.single import Single
from phalanx.engine.strategies.skipped_steps import Skips, flag_of, poisoned
from phalanx.engine.training.ema import begin_average
from phalanx.job.schema import Ema, Optimizer
from phalanx.recipe import Options, Recipe

CPU = torch.device("cpu")
GOOD, BAD = 1.0, float("nan")


@pytest.fixture(params=[False, True], ids=["host", "device"])
def strategy(request, monkeypatch):
    """One that decides on the host, and one that lets the device decide."""
    monkeypatch.setattr(
        "phalanx.engine.strategies.base.is_decided_on_device", lambda *_: request.param
    )
    return make


def make(name="adamw", clip=1.0, precision="fp32"):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    strategy = Single(Recipe(Options()), model, Process(0, 1, CPU, "none"))
    optimizer = make_optimizer(Recipe(Options()), model, Optimizer(name=name), 0.1)
    strategy.adopt(optimizer, Precision(precision, CPU), clip)
    strategy.resume()
    return strategy


def step(strategy, factor, seed=3):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(6, 3, generator=generator) * factor
    strategy.backward(strategy.model(x).square().sum())
    return strategy.update(None)


def state(strategy):
    found = {n: s.tensor.clone() for n, s in strategy.model_state().items() if "num_" not in n}
    return found | {n: s.tensor.clone() for n, s in strategy.optimizer_state().tensors.items()}


def assert_same(one, other):
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_a_skipped_step_leaves_every_bit(strategy, name, clip):
    strategy = strategy(name, clip)
    average = begin_average(Ema(decay=0.5), strategy)
    step(strategy, GOOD)
    before = state(strategy) | {n: s.tensor.clone() for n, s in average.averages().items()}
    assert not math.isfinite(step(strategy, BAD))
    assert_same(before, state(strategy) | {n: s.tensor for n, s in average.averages().items()})
    step(strategy, GOOD, seed=4)
    assert strategy.skips.read(3) == [False, True, False]
    assert not torch.equal(before["0.weight"], strategy.model[0].weight)
    assert not hasattr(strategy.optimizer, "found_inf")


def test_going_on_after_it_is_as_if_it_had_not_been(strategy):
    one, other = strategy(), strategy()
    for factor in (GOOD, BAD, GOOD):
        step(one, factor)
    for factor in (GOOD, GOOD):
        step(other, factor)
    assert_same(state(one), state(other))


def test_a_skipped_first_step(strategy):
    one, other = strategy(), strategy()
    step(one, BAD)
    step(one, GOOD)
    step(other, GOOD)
    assert_same(state(one), state(other))


def test_averages_move_as_much_wherever_it_is_decided(monkeypatch):
    found = []
    for is_on_device in (False, True):
        monkeypatch.setattr(
            "phalanx.engine.strategies.base.is_decided_on_device",
            lambda *_, value=is_on_device: value,
        )
        strategy = make()
        average = begin_average(Ema(decay=0.9), strategy)
        monkeypatch.setattr(average, "after_step", None)
        for _ in range(3):
            step(strategy, GOOD)
            average._update_unless(torch.tensor(0.0)) if is_on_device else average.update()
        found.append([shard.tensor for shard in average.averages().values()])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_what_is_captured_is_remembered_at_one_address():
    skips = Skips()
    skips.note(torch.tensor(1.0), is_captured=True)
    address = skips.last.data_ptr()
    for flag in (0.0, 1.0, 1.0):
        skips.note(torch.tensor(flag), is_captured=True)
    assert skips.last.data_ptr() == address
    assert skips.last == 1
    assert skips.read(4) == [True, False, True, True]
    assert skips.read(2) == [True, True]


@pytest.mark.parametrize(
    ("value", "flag"), [(1.5, 0), (0.0, 0), (math.inf, 1), (-math.inf, 1), (math.nan, 1)]
)
def test_what_counts_as_not_finite(value, flag):
    assert flag_of(torch.tensor(value)) == flag
    begin = poisoned(torch.tensor(0.25), torch.tensor(value))
    assert begin == 0.25 if flag == 0 else begin.isnan()


@pytest.mark.parametrize("clip", [None, 1.0])
def test_the_loss_scaler_skips_and_the_average_stays(clip):
    strategy = make(clip=clip, precision="fp16")
    average = begin_average(Ema(decay=0.5), strategy)
    step(strategy, GOOD)
    before = {n: s.tensor.clone() for n, s in average.averages().items()}
    step(strategy, BAD)
    assert_same(before, {n: s.tensor for n, s in average.averages().items()})
    assert strategy.skips.read(2) == [False, True]


@pytest.mark.parametrize("is_fused", [False, True])
def test_the_average_takes_in_the_step_after_one_that_overflowed(is_fused):
    strategy = make(precision="fp16", clip=None)
    for group in strategy.optimizer.param_groups:
        group["fused"] = is_fused
    strategy.optimizer._step_supports_amp_scaling = is_fused
    average = begin_average(Ema(decay=0.5), strategy)
    for factor, updates in ((GOOD, 1), (BAD, 1), (GOOD, 2), (GOOD, 3)):
        step(strategy, factor)
        assert average.record()["updates"] == updates
