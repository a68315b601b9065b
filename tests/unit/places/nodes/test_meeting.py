"""Nodes that meet, in one process over loopback; tests/cluster has them on hosts of their own."""

import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from phalanx.errors import UserError
from phalanx.places.nodes import link as node_link
from phalanx.places.nodes import meeting, meeting_guest
from phalanx.places.nodes.findings import command_of
from phalanx.places.nodes.link import NodeLink
from phalanx.places.nodes.meeting import NodesAsked, meet, parse_rendezvous
from phalanx.places.nodes.meeting_terms import Greeting, Hello, Introduction, Welcome
from phalanx.places.nodes.preflight import check_pairs
from phalanx.run.channel import Channel

FACTS = {"versions": {"phalanx": "1"}, "job": {"optimizer": {"lr": 0.1}}}


@pytest.fixture
def asked(monkeypatch):
    """Three nodes, all of them here."""
    monkeypatch.setattr(meeting, "is_loopback", lambda address: False)
    monkeypatch.setattr(meeting_guest, "_RETRY_S", 0.01)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def make(rank, nodes=3):
        return NodesAsked(nodes=nodes, node_rank=rank, host="127.0.0.1", port=port, timeout_s=60)

    return make


def refusal(asked, folder, facts=FACTS):
    with pytest.raises(UserError) as caught:
        meet(asked, folder, facts, lambda text: None)
    return caught.value.findings


def test_nodes_meet_and_those_that_differ_are_refused(asked, tmp_path):
    with ThreadPoolExecutor(3) as pool:
        told = []
        host = pool.submit(meet, asked(0), tmp_path, FACTS, told.append)
        first = pool.submit(meet, asked(2), tmp_path, FACTS, lambda text: None)
        while not any("is here" in text for text in told):
            assert not host.done(), host.result()
        other = {**FACTS, "job": {"optimizer": {"lr": 0.2}, "steps": 3}}
        found = refusal(asked(1), tmp_path, other)
        assert [f.slug for f in found] == ["nodes-differ"] * 2
        assert found[0].what.startswith("job.optimizer.lr is 0.1 on node 0 (")
        assert "and 0.2 on node 1 (" in found[0].what
        assert "job.steps is not given on node 0" in found[1].what
        assert [f.slug for f in refusal(asked(2), tmp_path)] == ["node-rank-taken"]
        assert [f.slug for f in refusal(asked(1, nodes=4), tmp_path)] == ["nodes-differ"]
        last = pool.submit(meet, asked(1), tmp_path, FACTS, lambda text: None)
        met = [host.result(30), last.result(30), first.result(30)]
        try:
            assert [one.rank for one in met] == [0, 1, 2]
            assert sorted(met[0].links) == [1, 2]
            list(pool.map(check_pairs, met))  # nobody raises
            secret = next(tmp_path.glob(".meeting-*"))
            assert secret.stat().st_mode & 0o777 == 0o600
            assert [f.slug for f in refusal(asked(1), tmp_path)] == ["nodes-complete"]
        finally:
            for one in reversed(met):  # node 0 waits for the others to part
                one.close()
    assert not list(tmp_path.iterdir())


def test_who_cannot_read_the_secret_is_no_node(asked, tmp_path, monkeypatch):
    monkeypatch.setattr(meeting_guest, "GREETING_S", 0.5)
    with ThreadPoolExecutor(1) as pool:
        host = pool.submit(meet, asked(0, 2), tmp_path / "a", FACTS, lambda text: None)
        (found,) = refusal(asked(1, 2), tmp_path / "b")
        assert found.slug == "output-not-shared"
        assert f"`{tmp_path / 'b'}` on node 1" in found.what
        with socket.create_connection(("127.0.0.1", asked(0).port)) as stranger:
            channel = Channel(stranger)
            assert isinstance(channel.receive(30), Greeting)
            hello = Hello(
                nodes=2,
                node_rank=1,
                host="b",
                address="127.0.0.1",
                interface="lo",
                gbps=None,
                settings=[],
                facts=FACTS,
            )
            channel.send(Introduction(proof="0" * 64, challenge="x", hello=hello))
            with pytest.raises(EOFError):
                channel.receive(30)
        assert not host.done()  # it waits on
        guest = meet(asked(1, 2), tmp_path / "a", FACTS, lambda text: None)
        guest.close()
        host.result(30).close()


def test_a_silent_node_is_lost(monkeypatch):
    monkeypatch.setattr(node_link, "LOST_S", 0.6)
    ours, theirs = socket.socketpair()
    link = NodeLink(ours, Channel(ours), "node 1 (b)")
    try:
        Channel(theirs).send(Welcome(1, []))
        while link.lost is None:
            os.sched_yield()
        assert link.lost == "nothing was heard of it for 1 s"
        assert not link.is_over
        assert link.receive(0) == Welcome(1, [])
        assert link.is_over
    finally:
        link.close()
        theirs.close()
    assert not [t for t in threading.enumerate() if t.name == "node link" and t is link._thread]


def test_all_that_is_wrong_with_the_options_is_said_together():
    assert parse_rendezvous(1, None, None, 600) is None
    for nodes, rank, where, count in ((2, 2, None, 2), (1, None, "a:1", 1), (2, None, "a:0", 1)):
        with pytest.raises(UserError) as caught:
            parse_rendezvous(nodes, rank, where, 600)
        assert [f.slug for f in caught.value.findings] == ["nodes-asked"] * count
    asked = parse_rendezvous(2, 1, "[fe80::1]:29500", 600)
    assert (asked.host, asked.port, asked.node_rank) == ("fe80::1", 29500, 1)


@pytest.mark.parametrize(
    "host", ["-x", "a b", "$(touch pwned)", "a\nb", "a..b", "é" * 80, "a\0b", "no.such.invalid"]
)
def test_a_host_that_is_none_is_a_finding(host, tmp_path):
    (found,) = refusal(parse_rendezvous(2, None, f"{host}:29500", 1), tmp_path)
    assert found.slug == "rendezvous-unknown"
    assert "\n" not in found.what
    assert not list(tmp_path.iterdir())


def test_the_command_for_another_node(monkeypatch):
    words = ["phalanx", "launch", "--node-rank", "0", "--nodes", "2", "--rendezvous", "a:1", "x.py"]
    monkeypatch.setattr("sys.argv", [*words, "--api-key", "canary"])
    assert command_of(1) == (
        "phalanx launch --nodes 2 --node-rank 1 --rendezvous a:1 x.py --api-key '***'"
    )
