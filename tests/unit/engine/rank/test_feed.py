"""When a rank wants to stop or to save: limits of the session, signals, the clock."""

from types import SimpleNamespace

import pytest

from phalanx.engine.rank import feed as feeding
from phalanx.job.source.value_types import parse_interval
from tests.fixtures.plans import plan_with


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is told otherwise."""
    clock = SimpleNamespace(now_s=1000.0)
    monkeypatch.setattr(feeding, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    return clock


def wishes(*, stop_after=None, start=0, save_every_s=None, is_first=True, is_signalled=False):
    limit = parse_interval(stop_after) if stop_after is not None else None
    signal = SimpleNamespace(is_set=is_signalled)
    plan = plan_with(steps_per_epoch=10, total_steps=40, save_every_s=save_every_s)
    job = SimpleNamespace(stop_after=limit)
    return feeding.make_wishes(job, plan, signal, is_first=is_first, start=start), signal


def first_stop(**settings):
    ask, _ = wishes(**settings)
    start = settings.get("start", 0)
    return next((s for s in range(start, 100) if ask(SimpleNamespace(step=s))[0]), None)


@pytest.mark.parametrize(
    ("stop_after", "step"),
    [("6 steps", 6), ("1 epochs", 10), ("0.5 epochs", 5), ("50%", 20), ("5%", 2), (None, None)],
)
def test_a_session_stops_after_its_limit(stop_after, step):
    assert first_stop(stop_after=stop_after) == step


def test_a_session_counts_from_where_it_began():
    assert first_stop(stop_after="6 steps", start=11) == 17


def test_every_rank_knows_a_limit_in_steps():
    assert first_stop(stop_after="6 steps", is_first=False) == 6


def test_minutes_are_the_first_ranks_to_count(clock):
    first, _ = wishes(stop_after="2 minutes")
    other, _ = wishes(stop_after="2 minutes", is_first=False)
    assert first(SimpleNamespace(step=0)) == (False, False)
    clock.now_s += 121
    assert first(SimpleNamespace(step=1)) == (True, False)
    assert other(SimpleNamespace(step=1)) == (False, False)


def test_saving_by_the_clock_starts_anew_after_each_wish(clock):
    ask, _ = wishes(save_every_s=60.0)
    saved = []
    for step in range(10):
        saved.append(ask(SimpleNamespace(step=step))[1])
        clock.now_s += 25
    assert saved == [False, False, False, True, False, False, True, False, False, True]


def test_a_signal_asks_to_stop_on_any_rank():
    for is_first in (True, False):
        ask, signal = wishes(is_first=is_first)
        assert ask(SimpleNamespace(step=0))[0] is False
        signal.is_set = True
        assert ask(SimpleNamespace(step=1))[0] is True
