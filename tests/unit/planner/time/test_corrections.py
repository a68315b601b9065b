"""What measured steps say about the others."""

import pytest

from phalanx.machine.calibration import MeasuredStep
from phalanx.planner.time.corrections import AMONG_SPREAD, BEYOND_SPREAD, correction


def step(micro, seconds, **changes):
    known = {"job_key": "k", "accumulation": 1, "fetch_s": 0.0, "data_s": 0.0, "overhead_s": 0.0}
    known |= {"compute_s": seconds, "communication_s": 0.0}
    return MeasuredStep(micro_batch=micro, step_s=seconds, **(known | changes))


def predict(micro, accumulation):
    """(device, host): the host takes as long as the device does for 6 samples."""
    return 0.001 * micro * accumulation, 0.006 * accumulation


STEPS = [step(8, 0.016), step(32, 0.032)]  # twice and once what is predicted of the device


@pytest.mark.parametrize(
    ("micro", "factor", "spread"),
    [
        (8, 2, AMONG_SPREAD),
        (32, 1, AMONG_SPREAD),
        (16, (0.016 + 0.016 / 3) / 0.016, AMONG_SPREAD),  # on the line: a third of the way
        (4, (0.016 - 0.016 / 6) / 0.004, BEYOND_SPREAD),
        (128, (0.032 + 4 * 0.016) / 0.128, BEYOND_SPREAD),
    ],
)
def test_the_factor_of_a_size(micro, factor, spread):
    found = correction(STEPS, micro, predict)
    assert (found.device, found.spread) == (pytest.approx(factor), spread)
    assert found.host == 1, "the host was never the slower one, nor quicker than predicted"


def test_a_smaller_size_takes_no_less_than_if_all_of_it_grew_with_the_samples():
    steep = [step(8, 0.008), step(32, 0.064)]  # their line is below 0 at 1
    assert correction(steep, 1, predict).device == pytest.approx(1)


def test_one_measured_size_gives_its_factor_to_all():
    assert correction(STEPS[:1], 64, predict).device == pytest.approx(2)


def test_a_quicker_host_is_noticed_where_it_was_not_the_slower_one():
    assert correction([step(8, 0.003)], 8, predict).host == pytest.approx(0.5)


def test_host_and_device_are_corrected_apart():
    waited = step(2, 0.012, compute_s=0.003, overhead_s=0.009)  # the device: 2, the host: 6
    found = correction([waited], 64, predict)
    assert (found.device, found.host) == (pytest.approx(1.5), pytest.approx(2))
    unsplit = correction([step(2, 0.012)], 64, predict)
    assert (unsplit.device, unsplit.host) == (1, pytest.approx(2)), "predicted to wait for the host"


def test_on_a_cpu_both_are_one():
    found = correction([step(2, 0.016)], 2, predict, is_one=True)
    assert (found.device, found.host) == (pytest.approx(2), pytest.approx(2))


def test_only_computing_is_compared():
    waited = step(8, 0.05, data_s=0.02, communication_s=0.014, accumulation=2)
    assert correction([waited], 8, predict).device == pytest.approx(1)
    assert correction([step(8, 0.02, data_s=0.02)], 8, predict) is None
    assert correction([], 8, predict) is None
    assert correction(STEPS, 8, lambda micro, accumulation: (0.0, 0.0)) is None
