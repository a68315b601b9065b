"""Curves stay bounded, and keep what matters of what they join."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.codec import from_json, to_json
from phalanx.watch.series import Series


def filled(values, limit=50):
    series = Series(limit)
    for step, value in enumerate(values, 1):
        series.add(step, float(step), value)
    return series


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=2000))
def test_never_more_points_than_twice_the_limit_and_no_extreme_is_lost(values):
    series = filled(values)
    points = series.points()
    assert len(points) <= 101
    assert min(p.low for p in points) == min(values)
    assert max(p.high for p in points) == max(values)
    assert series.last.value == values[-1]
    assert points[-1].step == len(values)
    assert [p.step for p in points] == sorted(p.step for p in points)


def test_what_is_not_finite_is_counted_and_not_drawn():
    series = filled([1.0, float("nan"), float("inf"), 2.0])
    assert [p.value for p in series] == [1.0, 2.0]
    assert series.num_bad == 2


def test_a_run_that_goes_back_loses_what_comes_again():
    series = filled(range(1000))
    series.cut_after(500)
    assert series.points()[-1].step <= 500
    series.add(501, 1.0, 7.0)
    assert series.last.value == 7.0


def test_values_between_points_widen_the_last_one():
    series = filled([1.0, 2.0])
    series.take_part(-5.0, 9.0)
    assert series.points()[-1][2:] == (2.0, -5.0, 9.0)


@pytest.mark.parametrize("count", [1, 7, 3000])
def test_reads_back_from_json(count):
    series = filled(range(count))
    again = from_json(Series, to_json(series))
    again.add(count + 1, 0.0, 1.0)
    series.add(count + 1, 0.0, 1.0)
    assert again.points() == series.points()
