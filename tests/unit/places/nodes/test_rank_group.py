"""The ranks of several nodes as one group: who died first, who is told what, and when."""

import signal
from pathlib import Path

import pytest

from phalanx.places.nodes import rank_group as module
from phalanx.places.nodes.messages import (
    EndRanks,
    ShareEnded,
    ShareStarted,
    StartShare,
    StopRequested,
)
from phalanx.places.nodes.rank_group import NodesGroup
from phalanx.run.launching import RankDeath, SendSignal, Share
from phalanx.supervise.place import Order, RanksLostError, RankStart
from phalanx.supervise.rank_group import cause_first

ORDER = StartShare(Share(run=Path("/runs/one"), attempt=3, ranks=1, nodes=2), Order())


class Local:
    """The ranks of node 0."""

    def __init__(self):
        self.starts, self.meeting_port, self.error = None, None, None
        self.is_running, self.deaths, self.beats, self.witnesses = True, [], {}, None
        self.pids, self.heard = [1], []

    def wait(self, timeout_s):
        pass

    def signal(self, number):
        self.heard.append(number)
        return True

    def end(self):
        self.heard.append("end")

    def tell_peers_over(self):
        self.heard.append("peers over")

    def cause_key(self, death):
        return cause_first(death)[:-1]

    def close(self):
        self.heard.append("closed")


class Link:
    """The line to node 1."""

    name, lost = "node 1 (b)", None

    def __init__(self):
        self.sent, self.received = [], []

    @property
    def is_over(self):
        return self.lost is not None and not self.received

    def send(self, message):
        self.sent.append(message)

    def receive(self, timeout_s):
        return self.received.pop(0) if self.received else None


@pytest.fixture
def both():
    local, link = Local(), Link()
    return NodesGroup(local, {1: link}, ORDER), local, link


def test_others_are_ordered_once_it_is_known_where_to_meet(both):
    group, local, link = both
    group.wait(0)
    assert link.sent == []
    local.meeting_port, local.starts = 29, [RankStart(1, "cpu on a")]
    group.wait(0)
    group.wait(0)
    (order,) = link.sent
    assert (order.share.node, order.share.port, order.share.attempt) == (1, 29, 3)
    assert group.starts is None
    assert not group.signal(signal.SIGTERM), "some are not there yet"
    link.received = [ShareStarted(3, [RankStart(2, "cpu on b")])]
    group.wait(0)
    assert [start.device for start in group.starts] == ["cpu on a", "cpu on b"]
    assert group.signal(signal.SIGTERM)
    assert local.heard == [signal.SIGTERM]
    assert link.sent[1:] == [SendSignal(signal.SIGTERM)]


def test_a_rank_that_was_killed_elsewhere_is_the_cause_although_it_is_heard_later(both):
    group, local, link = both
    local.deaths, local.is_running = [RankDeath(0, 1)], False
    group.wait(0)
    assert link.sent == [EndRanks()]
    link.received = [ShareEnded(2, [RankDeath(1, -11)], None)]
    group.wait(0)
    assert group.is_running, "that was of an attempt before"
    link.received = [ShareEnded(3, [RankDeath(1, -9)], None)]
    group.wait(0)
    assert not group.is_running
    assert [death.rank for death in group.deaths] == [1, 0]
    assert "peers over" in local.heard


def test_ranks_that_others_had_to_end_are_the_effect(both, monkeypatch):
    monkeypatch.setattr(module, "_END_PEERS_S", 0.0)
    group, local, link = both
    link.received = [ShareEnded(3, [RankDeath(1, 1)], None)]
    group.wait(0)
    assert local.heard == ["end", "peers over", signal.SIGKILL]
    local.deaths, local.is_running = [RankDeath(0, -9)], False
    group.wait(0)
    assert [(death.rank, death.was_ended) for death in group.deaths] == [(1, False), (0, True)]


def test_a_lost_node_ends_the_ranks_that_wait_for_it(both):
    group, local, link = both
    link.lost = "the connection was closed"
    group.wait(0)
    assert isinstance(group.error, RanksLostError)
    assert "node 1 (b) is lost: the connection was closed" in str(group.error)
    assert local.heard[0] == signal.SIGKILL


def test_how_other_commands_were_asked_to_stop(both):
    group, _, link = both
    link.received = [StopRequested(1, signal.SIGUSR1), StopRequested(2, signal.SIGUSR1)]
    group.wait(0)
    assert group.asked == [signal.SIGUSR1, signal.SIGUSR1]
    group.close()
    assert link.sent == [SendSignal(signal.SIGKILL)]
