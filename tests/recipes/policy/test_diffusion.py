"""Both samplers find a known distribution, from what a perfect network would say."""

import math

import pytest
import torch

from phalanx.recipes.policy.diffusion import alpha_sigma, noised, sample, target

MEAN, DEVIATION = 1.5, 0.5


def perfect(prediction):
    """What is best said of samples of a normal distribution: its posterior mean."""

    def predict(x, time):
        alpha, sigma = alpha_sigma(time)
        gain = alpha * DEVIATION**2 / (alpha**2 * DEVIATION**2 + sigma**2)
        actions = MEAN + gain * (x - alpha * MEAN)
        noise = (x - alpha * actions) / sigma
        return noise if prediction == "epsilon" else alpha * noise - sigma * actions

    return predict


@pytest.mark.parametrize("prediction", ["v", "epsilon"])
@pytest.mark.parametrize(("solver", "steps", "tolerance"), [("ddim", 64, 0.02), ("dpm", 16, 0.02)])
def test_samplers_find_the_distribution(prediction, solver, steps, tolerance):
    noise = torch.randn(4000, 2, 1, generator=torch.Generator().manual_seed(0)).double()
    made = sample(perfect(prediction), noise, prediction=prediction, solver=solver, steps=steps)
    assert made.mean() == pytest.approx(MEAN, abs=0.02)
    assert made.std() == pytest.approx(DEVIATION, abs=tolerance)


def test_second_order_needs_fewer_calls():
    noise = torch.randn(4000, 1, 1, generator=torch.Generator().manual_seed(0)).double()
    far_from = {}
    for solver in ("ddim", "dpm"):
        made = sample(perfect("v"), noise, prediction="v", solver=solver, steps=8)
        far_from[solver] = abs(made.std().item() - DEVIATION)
    assert far_from["dpm"] < 0.5 * far_from["ddim"]


def test_a_prediction_gives_the_actions_back():
    generator = torch.Generator().manual_seed(1)
    actions, noise = torch.randn(2, 5, 3, 2, generator=generator)
    time = torch.tensor([0.0, 0.2, 0.5, 0.9, 1.0])
    x = noised(actions, noise, time)
    angle = time[:, None, None] * math.pi / 2
    found = angle.cos() * x - angle.sin() * target(actions, noise, time, "v")
    torch.testing.assert_close(found, actions)
    assert target(actions, noise, time, "epsilon") is noise
