"""Intervals of success rates, and figures held against those of training."""

import math

import pytest

from phalanx.verbs.closed_loop import wilson_interval
from phalanx.verbs.evaluate import compare_recorded


@pytest.mark.parametrize(
    ("successes", "episodes", "low", "high"),
    [  # R: prop.test(x, n, correct = FALSE)
        (8, 10, 0.4902, 0.9433),
        (0, 10, 0.0, 0.2775),
        (50, 50, 0.9287, 1.0),
        (1, 3, 0.0615, 0.7923),
    ],
)
def test_the_interval_is_wilsons(successes, episodes, low, high):
    assert wilson_interval(successes, episodes) == pytest.approx((low, high), abs=5e-5)


def test_nothing_tried_says_nothing():
    assert wilson_interval(0, 0) == (0.0, 1.0)


def test_the_rate_solves_the_equation_of_the_interval():
    # Both ends are the rates from which the one seen is just 1.96 deviations away.
    for successes, episodes in ((3, 17), (200, 240)):
        for end in wilson_interval(successes, episodes):
            deviation = math.sqrt(end * (1 - end) / episodes)
            assert abs(successes / episodes - end) / deviation == pytest.approx(1.959964)


THEN = {"accuracy": 0.5, "loss": 1.25}


def test_figures_beside_those_of_training():
    assert compare_recorded(THEN, None) == (None, None)
    assert compare_recorded(dict(THEN), THEN) == (True, None)
    assert compare_recorded({**THEN, "loss": 1.25 * (1 + 1e-7)}, THEN) == (False, None)
    is_same, finding = compare_recorded({**THEN, "loss": 1.26}, THEN)
    assert (is_same, finding.slug) == (False, "evaluation-differs")
    assert "loss is 1.26 now and was 1.25" in finding.why
    assert "accuracy" not in finding.why
    _, finding = compare_recorded({"accuracy": 0.5}, THEN)
    assert "loss is None now" in finding.why
    assert compare_recorded({"loss": float("nan")}, {"loss": float("nan")})[1] is None
    assert compare_recorded({"loss": float("nan")}, THEN)[1] is not None
