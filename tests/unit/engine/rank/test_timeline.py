"""A step's time is split without rest and without counting anything twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.engine.rank.timeline import DATA, STEP, _Entry, _split, subtract, union

INTERVALS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 9)).map(lambda p: (p[0], p[0] + p[1])), max_size=9
)


def points(intervals):
    return {n for start, end in intervals for n in range(start, end)}


@given(INTERVALS, INTERVALS)
def test_intervals_are_sets_of_points(these, those):
    joined, others = union(these), union(those)
    assert points(joined) == points(these)
    assert sum(end - start for start, end in joined) == len(points(these))
    assert points(subtract(joined, others)) == points(these) - points(those)


def test_every_moment_of_a_step_has_one_cause():
    entries = [
        _Entry(DATA, False, 0.0, 2.0),
        _Entry(STEP, False, 2.0, 6.0),
        _Entry("Optimizer.step", False, 5.0, 6.0),
        # What the host marked shows up on the device as well, over all it started there.
        _Entry(STEP, True, 1.0, 10.0),
        _Entry("Optimizer.step", True, 1.0, 10.0),
        _Entry("gemm", True, 1.0, 4.0),  # hides half of the wait for data
        _Entry("elementwise", True, 3.0, 5.0),
        _Entry("ncclDevKernel_AllReduce", True, 4.0, 8.0),  # one second of it is hidden
        _Entry("adam", True, 9.0, 10.0),
    ]
    found = _split(entries, 1)
    assert found.data_s == pytest.approx(1.0)
    assert found.compute_s == pytest.approx(5.0)
    assert found.communication_s == pytest.approx(3.0)
    assert found.overhead_s == pytest.approx(1.0)  # from 8 to 9
    assert _split(entries, 2).compute_s == pytest.approx(2.5)


def test_without_kernels_nothing_is_known():
    assert _split([_Entry(STEP, False, 0.0, 1.0)], 1) is None
