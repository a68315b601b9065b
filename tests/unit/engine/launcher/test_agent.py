"""Who of the ranks died by itself, and who was ended because another had died."""

import signal

import pytest

from phalanx.engine.launcher import agent as module
from phalanx.engine.launcher.agent import RankAgent


class Child:
    """A rank that ends with a code after some looks, or when it is sent a signal."""

    def __init__(self, code, *, looks=0, ends_at=None):
        self.code, self.looks, self.ends_at = code, looks, ends_at
        self.sent = []

    def poll(self):
        self.looks -= 1
        is_over = self.looks < 0 if self.ends_at is None else self.ends_at in self.sent
        return self.code if is_over else None


@pytest.fixture
def end(monkeypatch):
    monkeypatch.setattr(module, "_SHUTDOWN_S", 0.0)

    def run(*children):
        made = object.__new__(RankAgent)
        made._children, made._codes, made._ended = dict(enumerate(children)), {}, set()
        made._listen = lambda timeout_s: None
        made._signal = lambda number: [child.sent.append(number) for child in children]
        made._end()
        return made._codes, made._ended

    return run


def test_a_killed_rank_that_is_gone_later_than_its_peers_is_still_the_cause(end, monkeypatch):
    monkeypatch.setattr(module, "_SHUTDOWN_S", 60.0)
    codes, ended = end(Child(-signal.SIGKILL, looks=3), Child(1), Child(1))
    assert codes[0] == -signal.SIGKILL
    assert ended == set()


def test_ranks_that_had_to_be_ended_are_the_effect(end):
    stuck = Child(-signal.SIGKILL, ends_at=signal.SIGKILL)
    early = Child(-signal.SIGTERM, ends_at=signal.SIGTERM)
    assert end(stuck, early, Child(-signal.SIGSEGV))[1] == {0, 1}
