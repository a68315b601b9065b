"""Steps as CUDA graphs: bit for bit what the same steps are without."""

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
from phalanx.engine.training.ema import WeightAverage
from phalanx.engine.training.step import TrainStep
from phalanx.job.schema import Optimizer
from phalanx.job.schema import Schedule as ScheduleJob
from phalanx.planner.schema.micro_batches import StepShare
from phalanx.recipe import Options, Recipe, Term


class Noisy(Recipe):
    """Dropout, BatchNorm and, on request, a loss that asks the device for a value."""

    reads = False
    is_late = False

    def groups(self, model):
        return [
            {"params": list(model[0].parameters())},
            {"params": list(model[1:].parameters()), "lr_scale": 0.5},
        ]

    def loss(self, model, batch, keys):
        errors = (model(batch["x"]) - batch["y"]).float().square().sum(1)
        if self.reads and errors.sum().item() < 0:
            raise AssertionError
        kept = (errors < 1e6).sum() if self.is_late else len(errors)
        return {"fit": Term(errors.sum(), kept)}


def never_captured(step):
    graphed = GraphedStep(step)
    graphed._is_dropped = True
    return graphed


def train(
    execute,
    sizes,
    *,
    precision="fp32",
    name="adamw",
    recipe=None,
    is_averaged=False,
    lr=1e-2,
    gain=1.0,
    least_weight=0.0,
):
    """`execute` makes of the step's description what runs it."""
    torch.manual_seed(0)
    device = torch.device("cuda", 0)
    model = nn.Sequential(
        nn.Linear(32, 64), nn.BatchNorm1d(64), nn.Dropout(0.3), nn.ReLU(), nn.Linear(64, 8)
    ).to(device)
    recipe = recipe or Noisy(Options())
    strategy = Single(recipe, model, Process(0, 1, device, "none"))
    job = Optimizer(name=name, momentum=0.9)
    optimizer = make_optimizer(recipe, model, job, 1e-2)
    assert optimizer.defaults["fused"]
    strategy.adopt(optimizer, Precision(precision, device), 1.0)
    average = WeightAverage(strategy, decay=0.9, warmup=True) if is_averaged else None
    if average is not None:
        strategy.follow_updates(average.after_step)
    schedule = Schedule(
        ScheduleJob(name="cosine"), peak_lr=lr, warmup_steps=2, total_steps=len(sizes)
    )
    step = execute(
        TrainStep(
            strategy=strategy, schedule=schedule, seed=5, gain=gain, least_weight=least_weight
        )
    )
    random = torch.Generator().manual_seed(1)
    seen = []
    for index, parts in enumerate(sizes):
        micro = []
        for slot, size in enumerate(parts):
            batch = {"x": torch.randn(size, 32, generator=random)}
            batch["y"] = torch.randn(size, 8, generator=random)
            batch = {key: value.to(device) for key, value in batch.items()}
            micro.append(MicroBatch(slot, batch, torch.arange(size, device=device), None))
        share = StepShare(index, 0, 0, (), len(parts))
        weights = None if recipe.is_late else {"*": float(sum(parts))}
        result = step.run(StepInput(share, micro, weights, must_stop=False, must_save=False))
        late = float(result.late_weight) if result.late_weight is not None else None
        seen.append((float(result.sums["fit"]), float(result.grad_norm), result.lr, late))
    state = [tensor.clone() for tensor in model.state_dict().values()]
    state += average._averages if average is not None else []
    return step, seen, state


# Two kinds of steps, one of them with micro-batches of two sizes.
SIZES = [[16], [16], [8, 8, 5], [16], [8, 8, 5], [16], [16]]


@pytest.mark.parametrize("name", ["adamw", "sgd"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_graph_gives_the_same_bits(precision, name):
    _, seen, state = train(never_captured, SIZES, precision=precision, name=name, is_averaged=True)
    step, graphed, same = train(
        GraphedStep, SIZES, precision=precision, name=name, is_averaged=True
    )
    assert [finding.why for finding in step.findings] == []
    assert len(step._kinds) == 2
    assert graphed == seen
    assert all(torch.equal(a, b) for a, b in zip(same, state, strict=True))


class Late(Noisy):
    is_late = True


@pytest.mark.parametrize("gain", [1.0, 3.3])
@pytest.mark.parametrize("recipe", [Noisy, Late])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_graph_replays_the_formula_of_an_eager_step(precision, recipe, gain):
    """With a rate of 0, because the optimizer reads its rate on the device in a graph only."""
    settings = {"precision": precision, "lr": 0.0, "gain": gain, "least_weight": 18.0}
    _, eager, _ = train(lambda step: step, SIZES, recipe=recipe(Options()), **settings)
    step, graphed, _ = train(GraphedStep, SIZES, recipe=recipe(Options()), **settings)
    assert [finding.why for finding in step.findings] == []
    assert len(step._kinds) == 2
    assert graphed == eager


def test_a_weight_that_only_the_predictions_know():
    _, seen, state = train(never_captured, SIZES, recipe=Late(Options()))
    step, graphed, same = train(GraphedStep, SIZES, recipe=Late(Options()))
    assert [finding.why for finding in step.findings] == []
    assert graphed == seen
    assert all(torch.equal(a, b) for a, b in zip(same, state, strict=True))


def test_what_cannot_be_captured_goes_on_without():
    class Reads(Noisy):
        reads = True

    step, seen, state = train(GraphedStep, SIZES, recipe=Reads(Options()))
    assert [finding.slug for finding in step.findings] == ["graph-dropped"]
    _, expected, same = train(never_captured, SIZES)
    assert seen == expected
    assert all(torch.equal(a, b) for a, b in zip(same, state, strict=True))


def test_many_sizes_go_on_without():
    sizes = [[size] for size in range(8, 18)]
    step, seen, state = train(GraphedStep, sizes)
    assert "combinations of sizes" in step.findings[0].why
    _, expected, same = train(never_captured, sizes)
    assert seen == expected
    assert all(torch.equal(a, b) for a, b in zip(same, state, strict=True))


def test_nothing_waits_for_the_device():
    step, _, _ = train(GraphedStep, SIZES)
    kind = step._kinds[next(iter(step._kinds))]
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        place = kind.passes[0].place
        share = StepShare(9, 0, 0, (), 1)
        micro = MicroBatch(0, dict(place.batch), place.keys.clone(), None)
        step.run(StepInput(share, [micro], {"*": 16.0}, must_stop=False, must_save=False))
    finally:
        torch.cuda.set_sync_debug_mode("default")
