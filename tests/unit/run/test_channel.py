"""Messages between processes: what is sent arrives as its type, what is no message harms none."""

import json
import socket
from pathlib import Path
from signal import SIGTERM

import pytest

from phalanx.codec import from_json
from phalanx.machine.facts import Machine
from phalanx.places.nodes.messages import MachineFound, ShareBeats, StartShare
from phalanx.run.channel import Channel, Message
from phalanx.run.heartbeat import Beat, Part, Phase
from phalanx.run.launching import RankDeath, RanksEnded, SendSignal, Share, StartRanks
from phalanx.supervise.place import Order

MACHINES = Path(__file__).parents[2] / "fixtures" / "machines"
SHARE = Share(run=Path("/runs/one"), attempt=2, ranks=4, node=1, nodes=2, address="a", port=7)


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair()
    yield Channel(ours), theirs
    ours.close()
    theirs.close()


@pytest.mark.parametrize(
    "message",
    [
        StartRanks(SHARE, {"A": "b"}),
        SendSignal(SIGTERM),
        RanksEnded([RankDeath(1, -9), RankDeath(0, 1, was_ended=True, lines=("bye",))]),
        StartShare(SHARE, Order(wait_s=3.0, plan="digest")),
        MachineFound(from_json(Machine, json.loads((MACHINES / "8xa100.json").read_text()))),
        ShareBeats(1, [Beat(0, 0.5, Phase.STEP, Part.DATA, 3, 1, (0.0, 1.5))]),
    ],
)
def test_what_is_sent_arrives(ends, message):
    channel, theirs = ends
    Channel(theirs).send(message)
    assert channel.receive(5) == message


def test_what_a_newer_version_sends_is_ignored(ends):
    channel, theirs = ends
    theirs.sendall(b'{"message": "Unheard"}\n{"message": "SendSignal", "number": 15, "why": 1}\n')
    assert channel.receive(5) == SendSignal(SIGTERM)
    assert channel.receive(0) is None


@pytest.mark.parametrize(
    "line",
    [
        b"GET / HTTP/1.0",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"message": "SendSignal"}',
        b'{"message": "SendSignal", "number": 4711}',
        b'{"message": "RanksEnded", "deaths": [[1]]}',
    ],
)
def test_a_damaged_message_is_a_value_error(ends, line):
    channel, theirs = ends
    theirs.sendall(line + b"\n")
    with pytest.raises(ValueError, match=r"."):
        channel.receive(5)


def test_a_stranger_may_not_say_much(ends):
    channel, theirs = ends
    channel.limit = 1000
    theirs.sendall(b"x" * 2000)
    with pytest.raises(EOFError):
        channel.receive(5)


def test_names_of_messages_are_those_of_their_types():
    assert b'"message": "SendSignal"' in SendSignal(SIGTERM).to_line()
    assert Message.from_line(b"{}") is None
