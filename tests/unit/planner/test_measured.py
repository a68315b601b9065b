"""What measured steps say about the others."""

import pytest

from phalanx.machine.calibration import MeasuredStep
from phalanx.planner.measured import AMONG_SPREAD, BEYOND_SPREAD, correction


def step(micro, seconds, **changes):
    known = {"job_key": "k", "accumulation": 1, "fetch_s": 0.0, "data_s": 0.0, "overhead_s": 0.0}
    known |= {"compute_s": seconds, "communication_s": 0.0}
    return MeasuredStep(micro_batch=micro, step_s=seconds, **(known | changes))


def predict(micro, accumulation):
    return 0.001 * micro * accumulation


STEPS = [step(4, 0.008), step(16, 0.016)]  # twice and once what is predicted


@pytest.mark.parametrize(
    ("micro", "factor", "spread"),
    [
        (4, 2, AMONG_SPREAD),
        (16, 1, AMONG_SPREAD),
        (8, 1.5, AMONG_SPREAD),  # half way on a logarithmic scale
        (1, 2, BEYOND_SPREAD),
        (64, 1, BEYOND_SPREAD),
    ],
)
def test_the_factor_of_a_size(micro, factor, spread):
    assert correction(STEPS, micro, predict) == (pytest.approx(factor), spread)


def test_one_step_speaks_for_all_sizes():
    assert correction(STEPS[:1], 4, predict) == (2, AMONG_SPREAD)
    assert correction(STEPS[:1], 64, predict) == (2, BEYOND_SPREAD)


def test_only_computing_is_compared():
    waited = step(8, 0.05, data_s=0.02, communication_s=0.014, accumulation=2)
    assert correction([waited], 8, predict)[0] == pytest.approx(1)
    assert correction([step(8, 0.02, data_s=0.02)], 8, predict) is None
    assert correction([], 8, predict) is None
    assert correction(STEPS, 8, lambda micro, accumulation: 0.0) is None
