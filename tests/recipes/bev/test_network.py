"""The planner: what it is given and gives, how it samples, and where its units come from."""

import torch

from phalanx.recipe.loading import load_recipe
from phalanx.recipes.bev.diffusion import noise_share, signal_share, take_off

SEEN = ("bev", "speed", "command", "route")


def batch_of(samples):
    generator = torch.Generator().manual_seed(3)
    return {
        "bev": torch.randint(0, 256, (samples, 7, 48, 32), dtype=torch.uint8, generator=generator),
        "speed": torch.rand(samples, generator=generator) * 20,
        "command": torch.randint(1, 5, (samples,), generator=generator),
        "route": torch.randn(samples, 8, 2, generator=generator) * 10,
        "plan": torch.randn(samples, 8, 2, generator=generator) * 10,
    }


def make(**options):
    torch.manual_seed(0)
    recipe = load_recipe("bev", {"width": 32, "depth": 2, **options})
    model = recipe.model()
    with torch.no_grad():  # its last layer begins at zero
        model.put_out.weight.normal_(0, 0.1)
    return recipe, model


def test_sampling_ends_at_what_the_model_takes_for_clean():
    clean = torch.randn(5, 1, 8, 2)
    for steps in (1, 4, 9):
        found = take_off(lambda noisy, noise: clean, torch.randn(5, 1, 8, 2), steps)
        torch.testing.assert_close(found, clean)
    level = torch.rand(9)
    torch.testing.assert_close(signal_share(level) ** 2 + noise_share(level) ** 2, torch.ones(9))


def test_a_sample_is_planned_alike_alone_and_among_others():
    _, model = make()
    batch = batch_of(6)
    plans, deviations = model(*(batch[name] for name in SEEN))
    assert plans.shape == deviations.shape == (6, 8, 2)
    alone, _ = model(*(batch[name][2:3] for name in SEEN))
    torch.testing.assert_close(alone, plans[2:3], rtol=1e-4, atol=1e-4)


def test_every_thing_that_is_seen_matters():
    _, model = make()
    batch = batch_of(4)
    plans, _ = model(*(batch[name] for name in SEEN))
    for name in SEEN:
        changed = {**batch, name: batch[name].roll(1, 0)}
        other, _ = model(*(changed[name] for name in SEEN))
        assert (other - plans).abs().max() > 1e-3, name


def test_plans_come_in_metres_of_the_spread_that_the_buffers_hold():
    _, model = make()
    batch = batch_of(4)
    plans, deviations = model(*(batch[name] for name in SEEN))
    times = 0.5 * torch.arange(1, 9)
    ahead = batch["speed"][:, None] * times
    straight = torch.stack([ahead, torch.zeros_like(ahead)], -1)
    model.spread.fill_(3.0)
    wider, deviated = model(*(batch[name] for name in SEEN))
    torch.testing.assert_close(wider - straight, 3 * (plans - straight), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(deviated, 3 * deviations)
    assert {"spread", "centre"} <= model.state_dict().keys()


def test_a_perfect_planner_has_no_loss_and_no_error():
    recipe, _ = make()
    batch = batch_of(4)

    class Perfect(torch.nn.Module):
        def forward(self, bev, speed, command, route, plan=None, random=None, noise=None):
            if noise is None:
                return batch["plan"], torch.ones(4, 8, 2)
            assert (noise[:, 0] == 1).all() and random.shape == (4, 4, 8, 2)
            return torch.zeros_like(random), torch.zeros_like(random)

    terms = recipe.loss(Perfect(), batch, torch.arange(4))
    assert terms["plan"].sum == 0 and terms["plan"].weight == 4
    metrics = recipe.metrics(recipe.evaluate(Perfect(), batch))
    assert metrics["ade"] == metrics["fde"] == metrics["miss_rate"] == 0
    assert metrics["within_2_deviations"] == 1
    assert metrics["constant_velocity_ade"] > 1
