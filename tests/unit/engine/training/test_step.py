"""One optimizer step on one rank: gradients of the global batch, whatever the slots."""

import pytest
import torch
from torch import nn

from phalanx.engine.data.micro_batches import MicroBatch
from phalanx.engine.data.step_feed import StepInput
from phalanx.engine.fast.cuda_graph import GraphedStep
from phalanx.engine.process.group import Process
from phalanx.engine.strategies.optimizers import Schedule
from phalanx.engine.strategies.precision import Precision
from phalanx.engine.strategies.single import Single
from phalanx.engine.training.loss_weights import weight_of
from phalanx.engine.training.step import StepResult, TrainStep
from phalanx.errors import UserError
from phalanx.job.schema import Schedule as ScheduleJob
from phalanx.planner.schema.micro_batches import StepShare
from phalanx.recipe import Options, Recipe, Term

CPU = torch.device("cpu")
X = torch.tensor([[1.0], [2.0], [4.0], [8.0]])


class Sums(Recipe):
    """The terms a test asks for; each is weighted by its number of samples."""

    terms = ("fit",)

    def loss(self, model, batch, keys):
        return {name: Term(model(batch).square().sum(), len(batch)) for name in self.terms}


def graphed(**parts):
    return GraphedStep(TrainStep(**parts))


@pytest.fixture(params=[TrainStep, graphed], ids=["plain", "graphed, before it is captured"])
def kind(request):
    return request.param


def make(recipe=None, *, clip_norm=None, precision="fp32", kind=TrainStep, **settings):
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    strategy = Single(recipe or Sums(Options()), model, Process(0, 1, CPU, "none"))
    schedule = Schedule(ScheduleJob(name="constant"), peak_lr=0.01, warmup_steps=0, total_steps=10)
    optimizer = torch.optim.SGD([{"params": list(model.parameters()), "lr_scale": 1.0}], lr=1.0)
    strategy.adopt(optimizer, Precision(precision, CPU), clip_norm)
    return model, kind(strategy=strategy, schedule=schedule, seed=0, **settings)


def make_input(sizes, weights):
    parts = X.split(sizes)
    micro = [MicroBatch(i, x, torch.arange(len(x)), None) for i, x in enumerate(parts)]
    share = StepShare(step=0, epoch=0, consumed=4, slots=(), num_slots=len(parts))
    return StepInput(share, micro, weights, must_stop=False, must_save=False)


# d/dw of mean((w x)^2) at w = 1 is 2 mean(x^2) = 2 * 85 / 4.
GRADIENT = 42.5


@pytest.mark.parametrize("sizes", [[4], [2, 2], [1, 3], [1, 1, 1, 1]], ids=str)
@pytest.mark.parametrize("weights", [{"*": 4.0}, {"fit": 4.0}, None], ids=["any", "named", "late"])
def test_any_slots_give_the_gradient_of_the_mean(sizes, weights, kind):
    model, step = make(kind=kind)
    result = step.run(make_input(sizes, weights))
    assert model.weight.item() == pytest.approx(1 - 0.01 * GRADIENT)
    assert result.sums["fit"].item() == pytest.approx(85)
    assert model.weight.grad is None


def test_the_norm_before_clipping_is_kept(kind):
    model, step = make(clip_norm=1.0, kind=kind)
    result = step.run(make_input([2, 2], {"*": 4.0}))
    assert result.grad_norm.item() == pytest.approx(GRADIENT)
    assert model.weight.item() == pytest.approx(1 - 0.01)


def test_fp16_unscales_before_it_clips():
    model, step = make(clip_norm=1.0, precision="fp16")
    scaler = step.strategy.precision.scaler
    scaler.load_state_dict(scaler.state_dict() | {"scale": 64.0})  # 65,536 overflows at first
    result = step.run(make_input([4], {"*": 4.0}))
    assert result.grad_norm.item() == pytest.approx(GRADIENT, rel=1e-3)
    assert model.weight.item() == pytest.approx(1 - 0.01, rel=1e-3)


def test_a_term_without_any_weight_in_a_batch_adds_nothing(kind):
    # No positive sample in the whole batch: its sum is 0, its weight is 0, and 0/0 would end it.
    class Empty(Sums):
        def loss(self, model, batch, keys):
            fit = Term(model(batch).square().sum(), len(batch))
            return {"fit": fit, "boxes": Term((model(batch) * 0).sum(), 0.0)}

    model, step = make(Empty(Options()), kind=kind)
    step.run(make_input([2, 2], {"fit": 4.0, "boxes": 0.0}))
    assert model.weight.item() == pytest.approx(1 - 0.01 * GRADIENT)


def test_several_terms_with_late_weights_are_a_finding():
    class Two(Sums):
        terms = ("fit", "size")

    _, step = make(Two(Options()))
    with pytest.raises(UserError) as caught:
        step.run(make_input([4], None))
    (finding,) = caught.value.findings
    assert finding.slug == "late-weights"
    assert "fit, size" in finding.why


def test_several_terms_may_share_one_late_weight(kind):
    class Shared(Sums):
        def loss(self, model, batch, keys):
            total, weight = model(batch).square().sum(), torch.tensor(float(len(batch)))
            return {"most": Term(0.75 * total, weight), "rest": Term(0.25 * total, weight)}

    model, step = make(Shared(Options()), kind=kind)
    result = step.run(make_input([1, 3], None))
    assert model.weight.item() == pytest.approx(1 - 0.01 * GRADIENT)
    assert result.sums["most"].item() == pytest.approx(3 * result.sums["rest"].item())


@pytest.mark.parametrize("weights", [{"*": 4.0}, None])
def test_a_gain_multiplies_gradients_and_not_what_is_shown(weights, kind):
    model, step = make(kind=kind, gain=3.0)
    result = step.run(make_input([2, 2], weights))
    assert model.weight.item() == pytest.approx(1 - 0.01 * 3 * GRADIENT)
    assert result.sums["fit"].item() == pytest.approx(85)


@pytest.mark.parametrize(("least", "counted"), [(16.0, 16.0), (2.0, 4.0)])
@pytest.mark.parametrize("sizes", [[4], [1, 3]], ids=str)
def test_a_late_weight_counts_at_least_that_of_the_whole_batch(sizes, least, counted, kind):
    # Of each micro-batch by itself it would be another sum for other sizes.
    model, step = make(kind=kind, least_weight=least)
    result = step.run(make_input(sizes, None))
    assert model.weight.item() == pytest.approx(1 - 0.01 * GRADIENT * 4 / counted)
    assert float(result.late_weight) == counted


def test_a_term_that_weight_does_not_name_is_a_finding():
    _, step = make()
    with pytest.raises(UserError) as caught:
        step.run(make_input([4], {"other": 4.0}))
    (finding,) = caught.value.findings
    assert finding.slug == "term-weight"
    assert "`fit`" in finding.what
    assert "other" in finding.why


def test_a_terms_own_weight_goes_before_the_common_one():
    assert weight_of({"fit": 2.0, "*": 3.0}, "fit") == 2.0
    assert weight_of({"fit": 2.0, "*": 3.0}, "size") == 3.0


def test_dropout_follows_seed_step_and_slot_and_not_what_was_drawn_before():
    class Dropping(Sums):
        def loss(self, model, batch, keys):
            return {"fit": Term(nn.functional.dropout(model(batch), 0.5).sum(), len(batch))}

    results = []
    for noise in (3, 50):
        model, step = make(Dropping(Options()))
        torch.rand(noise)
        step.run(make_input([2, 2], {"*": 4.0}))
        results.append(model.weight.item())
    assert results[0] == results[1]


def test_a_discarded_pass_names_the_terms():
    model, step = make()
    micro = MicroBatch(0, X, torch.arange(4), {"*": 4.0})
    assert list(step.discard(micro)) == ["fit"]
    assert model.weight.item() == 1.0


def test_sums_for_a_graph_stay_where_they_are_and_are_not_the_recipes():
    plain = StepResult(None)
    fixed = StepResult(None, is_fixed=True)
    parts = [torch.tensor(0.1), torch.tensor(0.7), torch.tensor(0.3)]
    kept = [part.clone() for part in parts]
    places = set()
    for part in parts:
        for result in (plain, fixed):
            result.add("fit", part)
            result.add_late(part)
        places.add((fixed.sums["fit"].data_ptr(), fixed.late_weight.data_ptr()))
    assert len(places) == 1
    assert torch.equal(fixed.sums["fit"], plain.sums["fit"])
    assert torch.equal(fixed.late_weight, plain.late_weight)
    assert parts == kept


class Onlooker:
    """Stands in for a recorder."""

    def __init__(self, strategy):
        self.weight = strategy.model.weight
        self.seen = []
        strategy.on_gradients = lambda: self.seen.append(("gradient", self.weight.grad.item()))

    def loss(self, micro_batch, run):
        terms = run()
        self.seen.append(("loss", micro_batch.slot, terms["fit"].sum.item()))
        return terms

    def step(self, step, lr, weights):
        self.seen.append(("step", step, lr, weights, self.weight.item()))


@pytest.mark.parametrize("weights", [{"*": 4.0}, None], ids=["known", "late"])
def test_a_recorder_sees_whole_gradients_that_are_not_clipped(weights):
    _, step = make(clip_norm=1.0)
    step.recorder = onlooker = Onlooker(step.strategy)
    step.run(make_input([1, 3], weights))
    assert onlooker.seen == [
        ("loss", 0, 1.0),
        ("loss", 1, 84.0),
        ("gradient", pytest.approx(GRADIENT)),
        ("step", 0, 0.01, weights, pytest.approx(1 - 0.01)),
    ]


@pytest.mark.parametrize("factor", [1.0, 3.0, 0.0])
@pytest.mark.parametrize("weight", [7.0, 0.1, 12345.678, 0.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_backward_begins_with_what_a_division_and_a_product_would_give(factor, weight, dtype):
    _, step = make()
    total = torch.tensor(5.3, dtype=dtype, requires_grad=True)
    objective = total / weight if weight else total * 0.0
    (objective * factor).backward()
    for _ in range(2):  # made, and kept
        gradient = step._first_gradient(total.detach(), factor, "fit", {"*": weight})
        assert gradient.dtype == dtype
        assert torch.equal(gradient, total.grad)
