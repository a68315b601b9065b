"""Messages between the command of node 0 and those of the other nodes, once they have met."""

from __future__ import annotations

from dataclasses import dataclass
from signal import Signals

from phalanx.errors import ExitCode, Finding
from phalanx.machine import Machine
from phalanx.run.channel import Message
from phalanx.run.event_kinds import Usage
from phalanx.run.heartbeat import Beat
from phalanx.run.launching import RankDeath, Share, Witness
from phalanx.supervise.place import Order, RankStart

# From node 0; `SendSignal` and `AskStacks` (run/launching.py) are passed on to the ranks.


@dataclass(frozen=True)
class StartShare(Message):
    """Start ranks."""

    share: Share
    order: Order


@dataclass(frozen=True)
class EndRanks(Message):
    """End the ranks in order: one of another node has died."""


@dataclass(frozen=True)
class RunEnded(Message):
    """How the run ended, which is how every command ends."""

    status: str
    exit_code: int
    reason: str
    findings: list[Finding]


# From the others.


@dataclass(frozen=True)
class MachineFound(Message):
    """What there is on a node."""

    machine: Machine


@dataclass(frozen=True)
class CannotJoin(Message):
    """Why a node cannot take part."""

    findings: list[Finding]
    exit_code: ExitCode


@dataclass(frozen=True)
class StopRequested(Message):
    """A command was asked to stop: how often, and how at first."""

    count: int
    number: Signals


@dataclass(frozen=True)
class OfAttempt(Message):
    """What a node says of its ranks: old news when another attempt has begun."""

    attempt: int


@dataclass(frozen=True)
class ShareStarted(OfAttempt):
    """The ranks of a node run."""

    starts: list[RankStart]


@dataclass(frozen=True)
class ShareBeats(OfAttempt):
    """Where each rank of a node is."""

    beats: list[Beat]


@dataclass(frozen=True)
class ShareUsage(OfAttempt):
    """What the ranks of a node use."""

    samples: list[Usage]


@dataclass(frozen=True)
class ShareStacks(OfAttempt):
    """Where the ranks of a node are stuck."""

    witnesses: list[Witness]


@dataclass(frozen=True)
class ShareEnded(OfAttempt):
    """The ranks of a node are gone, or were not started."""

    deaths: list[RankDeath]
    error: str | None
