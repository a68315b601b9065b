"""How often a run saves when the job leaves it open."""

from itertools import pairwise
from types import SimpleNamespace

import pytest

from phalanx.engine.checkpoint.cadence import Cadence


@pytest.fixture
def clock():
    return SimpleNamespace(now_s=1000.0)


def make(clock, share=0.01, every_s=None, busy=lambda: False, first_s=0.0):
    return Cadence(share, every_s=every_s, first_s=first_s, is_busy=busy, clock=lambda: clock.now_s)


def test_the_first_one_waits_until_what_it_is_expected_to_take_is_little(clock):
    assert make(clock).allows()
    cadence = make(clock, first_s=0.5)
    clock.now_s += 49
    assert not cadence.allows()
    assert not cadence.wants()
    clock.now_s += 2
    assert cadence.wants()
    assert make(clock, share=None, first_s=0.5).allows(), "a job that says how often is obeyed"


def test_the_second_one_does_not_wait_for_a_first_that_is_still_written(clock):
    busy = [False]
    cadence = make(clock, busy=lambda: busy[0])
    assert cadence.allows()
    busy[0] = True  # nothing is known yet of what it took
    clock.now_s += 1000
    assert not cadence.allows()


@pytest.mark.parametrize("stall", [0.001, 0.1, 3.0])
@pytest.mark.parametrize("epoch", [0.2, 5.0, 700.0])
def test_all_of_them_together_stay_below_one_percent(clock, stall, epoch):
    cadence, saved = make(clock, every_s=600.0), []
    while len(saved) < 20:
        for _ in range(10):  # steps of an epoch
            clock.now_s += epoch / 10
            if cadence.wants():
                saved.append(clock.now_s)
                cadence.saved(stall)
        if cadence.allows():
            saved.append(clock.now_s)
            cadence.saved(stall)
    elapsed = saved[-1] - 1000
    # The first takes longer than was expected here; the rest makes room for it.
    assert 20 * stall <= 0.01 * elapsed + stall
    # And no less often than that allows: an epoch, ten minutes, or a hundred times the stall.
    apart = [b - a for a, b in pairwise(saved[1:])]
    assert max(apart) <= max(min(epoch, 600), 100 * stall) + epoch / 10 + 1e-6


def test_what_was_put_off_is_saved_as_soon_as_it_may(clock):
    cadence = make(clock)
    clock.now_s += 1
    cadence.saved(0.1)
    assert not cadence.wants(), "nothing is due"
    assert not cadence.allows()
    clock.now_s += 18.9
    assert not cadence.wants()
    clock.now_s += 0.2
    assert cadence.wants()


def test_one_that_is_still_written_is_not_waited_for(clock):
    busy = [True]
    cadence = make(clock, busy=lambda: busy[0])
    clock.now_s += 1000
    cadence.saved(0.001)
    assert not cadence.allows()
    busy[0] = False
    assert cadence.wants()


def test_a_job_that_says_how_often_is_obeyed(clock):
    cadence = make(clock, share=None, every_s=60, busy=lambda: True)
    cadence.saved(50)
    assert cadence.allows()
    clock.now_s += 61
    assert cadence.wants()
    assert not cadence.wants()


def test_it_is_said_once_that_less_is_saved(clock):
    cadence = make(clock)
    cadence.saved(0.5)
    assert not cadence.allows()
    assert cadence.findings() == [], "a run of a few seconds"
    clock.now_s += 20
    assert not cadence.allows()
    (finding,) = cadence.findings()
    assert finding.slug == "checkpoint-put-off"
    assert "50 s apart" in finding.what
    assert "500 ms" in finding.what
    assert cadence.findings() == []


def test_it_is_said_once_that_much_time_goes(clock):
    cadence = make(clock, share=None)
    clock.now_s += 20
    cadence.saved(0.1)
    assert cadence.findings() == []
    cadence.saved(0.9)
    (finding,) = cadence.findings()
    assert finding.slug == "checkpoint-stall"
    assert "5.0%" in finding.what
    assert cadence.findings() == []
