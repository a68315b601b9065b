"""Steps that are not finite on a real GPU: nothing changes, nobody waits, captured or not."""

import pytest
import torch
from torch import nn

from phalanx.engine.data.micro_batches import MicroBatch
from phalanx.engine.data.step_feed import StepInput
from phalanx.engine.fast.cuda_graph import GraphedStep
from phalanx.engine.process.group import Process
from phalanx.engine.strategies.optimizers import Schedule, make_optimizer
from phalanx.engine.strategies.precision import Precision
from phalanx.engine.strategies.single import Single
from phalanx.engine.training.ema import begin_average
from phalanx.engine.training.step import TrainStep
from phalanx.job.schema import Ema, Optimizer
from phalanx.job.schema import Schedule as ScheduleJob
from phalanx.planner.schema.micro_batches import StepShare
from phalanx.recipe import Options, Recipe, Term

BAD = (3, 4, 7)


def graphed_step(**parts):
    return GraphedStep(TrainStep(**parts))


STEPS = 10


class Fit(Recipe):
    """`kind` says what is not finite in a bad step: its input, or its loss alone."""

    kind = "input"

    def loss(self, model, batch, keys):
        total = (model(batch["x"]) - batch["y"]).float().square().sum()
        if self.kind == "loss":
            total = total + batch["spoil"].sum()
        return {"fit": Term(total, len(batch["x"]))}


def make_batch(recipe, is_bad, random, device):
    x, y = torch.randn(16, 32, generator=random), torch.randn(16, 8, generator=random)
    spoil = torch.zeros(1)
    if is_bad and recipe.kind == "loss":
        spoil += float("inf")
    elif is_bad:
        x[5] = float("nan")
    batch = {"x": x.to(device), "y": y.to(device), "spoil": spoil.to(device)}
    return MicroBatch(0, batch, torch.arange(16, device=device), {"*": 16.0})


def train(kind, make_step, *, precision="fp32", name="adamw", clip=None, bad=BAD):
    """State after every step, flags, and whether a step had to wait for the device."""
    torch.manual_seed(0)
    device = torch.device("cuda", 0)
    model = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 8))
    model = model.to(device)
    recipe = Fit(Options())
    recipe.kind = kind
    strategy = Single(recipe, model, Process(0, 1, device, "none"))
    optimizer = make_optimizer(recipe, model, Optimizer(name=name, momentum=0.9), 1e-2)
    strategy.adopt(optimizer, Precision(precision, device), clip)
    average = begin_average(Ema(decay=0.9), strategy)
    strategy.resume()
    schedule = Schedule(ScheduleJob(name="cosine"), peak_lr=1e-2, warmup_steps=2, total_steps=STEPS)
    step = make_step(strategy=strategy, schedule=schedule, seed=5)
    random = torch.Generator().manual_seed(1)
    states = []
    for index in range(STEPS):
        micro = make_batch(recipe, index in bad, random, device)
        share = StepShare(index, 0, 0, (), 1)
        given = StepInput(share, [micro], {"*": 16.0}, must_stop=False, must_save=False)
        torch.cuda.set_sync_debug_mode("error" if index not in (0, 1) else "default")
        try:
            step.run(given)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        found = [t.clone() for n, t in model.state_dict().items() if "num_batches" not in n]
        found += [s.tensor.clone() for s in strategy.optimizer_state().tensors.values()]
        states.append(found + [s.tensor.clone() for s in average.averages().values()])
    return step, states, strategy.skips.read(STEPS)


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("name", ["adamw", "sgd"])
@pytest.mark.parametrize("kind", ["input", "loss"])
@pytest.mark.parametrize("make_step", [TrainStep, graphed_step])
def test_a_skipped_step_leaves_every_bit(make_step, kind, name, clip):
    step, states, flags = train(kind, make_step, name=name, clip=clip)
    assert [finding.why for finding in step.findings] == []
    assert flags == [index in BAD for index in range(STEPS)]
    for index in range(1, STEPS):
        assert equal(states[index - 1], states[index]) == (index in BAD), index
    assert all(tensor.isfinite().all() for tensor in states[-1])


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_graph_skips_the_same(precision):
    def never_captured(**parts):
        step = graphed_step(**parts)
        step._is_dropped = True
        return step

    _, plain, _ = train("input", never_captured, precision=precision)
    step, graphed, flags = train("input", graphed_step, precision=precision)
    assert len(step._kinds) == 1
    assert flags == [index in BAD for index in range(STEPS)]
    assert all(equal(one, other) for one, other in zip(plain, graphed, strict=True))


@pytest.mark.parametrize("make_step", [TrainStep, graphed_step])
def test_fp16_leaves_the_average_when_it_skips(make_step):
    _, states, flags = train("input", make_step, precision="fp16")
    for index in range(1, STEPS):
        assert equal(states[index - 1], states[index]) == flags[index], index
    assert all(flags[index] for index in BAD)
