"""The learning rate against closed forms, and the optimizer's groups."""

import math

import pytest
import torch
from torch import nn

from phalanx.engine.strategies.optimizers import Schedule, make_optimizer
from phalanx.job.schema import Optimizer
from phalanx.job.schema import Schedule as ScheduleJob
from phalanx.job.source.value_types import parse_interval
from phalanx.recipe import Options, Recipe

PEAK, WARMUP, TOTAL = 0.4, 10, 50


def schedule(name, *, warmup=WARMUP, total=TOTAL, floor=0.0):
    job = ScheduleJob(name=name, warmup=parse_interval("10 steps"), min_lr_ratio=floor)
    return Schedule(job, peak_lr=PEAK, warmup_steps=warmup, total_steps=total)


class Grouped(Recipe):
    def groups(self, model):
        return [
            {"params": list(model[0].parameters()), "lr_scale": 0.1, "weight_decay": 0.0},
            {"params": list(model[1].parameters())},
        ]


def two_layers():
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def test_a_first_step_that_overflows_leaves_no_rubbish_in_the_momentum():
    model = two_layers()
    job = Optimizer(name="sgd", momentum=0.9, weight_decay=0.0)
    optimizer = make_optimizer(Recipe(Options()), model, job, 0.1)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.grad_scale, optimizer.found_inf = torch.ones(()), torch.ones(())  # as GradScaler does
    optimizer.step()
    assert all((s["momentum_buffer"] == 0).all() for s in optimizer.state.values())
    optimizer.found_inf = torch.zeros(())
    optimizer.step()
    assert all((s["momentum_buffer"] == 1).all() for s in optimizer.state.values())


@pytest.mark.parametrize("name", ["constant", "linear", "cosine"])
def test_warmup_rises_in_equal_steps_to_the_peak(name):
    rates = [schedule(name).lr_at(step) for step in range(WARMUP)]
    assert rates == pytest.approx([PEAK * (step + 1) / WARMUP for step in range(WARMUP)])
    assert schedule(name).lr_at(WARMUP) == pytest.approx(PEAK)


def test_constant_stays_at_the_peak():
    assert {schedule("constant").lr_at(step) for step in range(WARMUP, TOTAL)} == {PEAK}


@pytest.mark.parametrize("floor", [0.0, 0.1, 1.0])
def test_linear_falls_in_equal_steps(floor):
    rates = [schedule("linear", floor=floor).lr_at(step) for step in range(WARMUP, TOTAL)]
    expected = [PEAK * (1 - (1 - floor) * i / (TOTAL - WARMUP)) for i in range(TOTAL - WARMUP)]
    assert rates == pytest.approx(expected)


@pytest.mark.parametrize("floor", [0.0, 0.1])
def test_cosine_is_half_a_cosine_wave(floor):
    rates = [schedule("cosine", floor=floor).lr_at(step) for step in range(WARMUP, TOTAL)]
    length = TOTAL - WARMUP
    low = PEAK * floor
    expected = [
        low + (PEAK - low) * 0.5 * (1 + math.cos(math.pi * i / length)) for i in range(length)
    ]
    assert rates == pytest.approx(expected)
    assert rates[length // 2] == pytest.approx((PEAK + low) / 2)


def test_cosine_equals_torchs_own():
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=PEAK)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=TOTAL)
    ours = schedule("cosine", warmup=0)
    for step in range(TOTAL):
        assert ours.lr_at(step) == pytest.approx(theirs.get_last_lr()[0], rel=1e-6)
        optimizer.step()
        theirs.step()


@pytest.mark.parametrize("name", ["constant", "linear", "cosine"])
@pytest.mark.parametrize(("warmup", "total"), [(0, 1), (1, 1), (5, 5), (0, 7), (6, 7)])
def test_every_rate_is_above_zero_and_at_most_the_peak(name, warmup, total):
    for step in range(total):
        rate = schedule(name, warmup=warmup, total=total).lr_at(step)
        assert 0 < rate <= PEAK * (1 + 1e-12)


def test_the_rate_depends_on_the_step_alone():
    one, other = schedule("cosine"), schedule("cosine")
    for step in range(30):
        one.lr_at(step)
    assert one.lr_at(30) == other.lr_at(30)


def test_apply_sets_every_group_by_its_scale():
    model = two_layers()
    optimizer = make_optimizer(Grouped(Options()), model, Optimizer(weight_decay=0.5), PEAK)
    rate = schedule("linear").apply(optimizer, 30)
    assert rate == pytest.approx(PEAK * 0.5)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([rate * 0.1, rate])
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.0, 0.5]


def test_without_groups_everything_that_learns_is_in_one():
    model = two_layers()
    model[0].weight.requires_grad_(False)
    optimizer = make_optimizer(Recipe(Options()), model, Optimizer(), PEAK)
    (group,) = optimizer.param_groups
    assert [id(p) for p in group["params"]] == [
        id(p) for p in (model[0].bias, model[1].weight, model[1].bias)
    ]
    assert group["lr_scale"] == 1.0


def test_adamw_gets_the_jobs_settings():
    job = Optimizer(name="adamw", betas=[0.8, 0.95], eps=1e-6, weight_decay=0.3)
    optimizer = make_optimizer(Recipe(Options()), two_layers(), job, PEAK)
    assert isinstance(optimizer, torch.optim.AdamW)
    (group,) = optimizer.param_groups
    assert group["betas"] == (0.8, 0.95)
    assert (group["eps"], group["weight_decay"], group["lr"]) == (1e-6, 0.3, PEAK)


def test_sgd_gets_the_jobs_settings():
    job = Optimizer(name="sgd", momentum=0.7, nesterov=True, weight_decay=0.3)
    optimizer = make_optimizer(Recipe(Options()), two_layers(), job, PEAK)
    assert isinstance(optimizer, torch.optim.SGD)
    (group,) = optimizer.param_groups
    assert (group["momentum"], group["nesterov"], group["weight_decay"]) == (0.7, True, 0.3)


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_an_optimizer_step_equals_torchs_plain_one(name):
    torch.manual_seed(0)
    ours = two_layers()
    theirs = two_layers()
    theirs.load_state_dict(ours.state_dict())
    optimizer = make_optimizer(Recipe(Options()), ours, Optimizer(name=name), 0.1)
    if name == "adamw":
        plain = torch.optim.AdamW(theirs.parameters(), lr=0.1, weight_decay=0.01, fused=False)
    else:
        plain = torch.optim.SGD(
            theirs.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01, fused=False
        )
    for _ in range(3):
        x = torch.randn(5, 3)
        for model, opt in ((ours, optimizer), (theirs, plain)):
            opt.zero_grad()
            model(x).square().sum().backward()
            opt.step()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_a_group_may_begin_the_warmup_at_a_rate_of_its_own():
    groups = [{"lr_scale": 1.0, "warmup_lr": 0.1}, {"lr_scale": 0.5}]
    made = schedule("linear")
    for step in range(WARMUP):
        share = (step + 1) / WARMUP
        assert made.group_lr(groups[0], step) == pytest.approx(0.1 + (PEAK - 0.1) * share)
        assert made.group_lr(groups[1], step) == pytest.approx(0.5 * PEAK * share)
    for step in (WARMUP, TOTAL - 1):
        assert made.group_lr(groups[0], step) == made.lr_at(step)


def test_the_momentum_of_sgd_may_rise_in_the_warmup():
    job = ScheduleJob(name="constant", warmup=parse_interval("10 steps"), warmup_momentum=0.8)
    made = Schedule(job, peak_lr=PEAK, warmup_steps=10, total_steps=50, momentum=0.937)
    kinds = [Optimizer(name="sgd", momentum=0.937), Optimizer(name="adamw")]
    sgd, adamw = (make_optimizer(Recipe(Options()), two_layers(), job, PEAK) for job in kinds)
    seen = []
    for step in (0, 4, 9, 30):
        made.apply(sgd, step)
        made.apply(adamw, step)
        seen.append(sgd.param_groups[0]["momentum"])
    assert seen == pytest.approx([0.8 + 0.0137, 0.8 + 0.0685, 0.937, 0.937])
    assert "momentum" not in adamw.param_groups[0]
