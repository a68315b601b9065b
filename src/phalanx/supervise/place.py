"""The ranks of one attempt as whoever owns them sees them, and where they are started: on this
machine, or on several nodes (places/nodes)."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from signal import Signals
from typing import Protocol

from phalanx.errors import Finding
from phalanx.machine.network import Setting
from phalanx.run.event_kinds import NodesJoined, Usage
from phalanx.run.heartbeat import Beat
from phalanx.run.launching import RankDeath, Share, Witness


@dataclass(frozen=True)
class RankStart:
    """A rank that runs."""

    pid: int
    device: str = ""
    """Where it computes, as far as is known before it says so itself."""


class Ranks(Protocol):
    """The ranks of one attempt, on one node or on several."""

    error: BaseException | None
    """Why they were not started, or lost."""
    asked: list[Signals]
    """How commands of other nodes were asked to stop."""

    @property
    def starts(self) -> list[RankStart] | None:
        """Every rank, in their order; None while some have not started."""

    @property
    def pids(self) -> list[int]:
        """Process ids of the ranks here, once they have started."""

    @property
    def deaths(self) -> list[RankDeath]:
        """Ranks that did not end in order, the cause first."""

    @property
    def beats(self) -> dict[int, Beat]:
        """Where each rank is, as last heard."""

    @property
    def witnesses(self) -> list[Witness] | None:
        """What the ranks say about where they are stuck, once all were asked and have answered."""

    @property
    def is_running(self) -> bool:
        """False once all ranks are gone, by what `wait` has heard."""

    def start(self) -> None: ...

    def wait(self, timeout_s: float) -> None:
        """Wait for news of the ranks, at most this long."""

    def signal(self, number: Signals) -> bool:
        """Send a signal to every rank; SIGKILL also takes the processes they started. Return False
        when there are none yet."""

    def ask_where(self) -> None:
        """Have every rank say where it is stuck."""

    def take_usage(self) -> list[Usage]:
        """Return what ranks on other nodes used, as said since this was last asked."""

    def close(self) -> None: ...


class LocalRanks(Ranks, Protocol):
    """The ranks of one attempt on this machine; those of several nodes are several of these."""

    @property
    def meeting_port(self) -> int | None:
        """Port at which the ranks of all nodes meet, once node 0 knows it."""

    def end(self) -> None:
        """End the ranks in order: one of another node has died."""

    def kill(self) -> None:
        """End the ranks at once, and wait until they are gone."""

    def tell_peers_over(self) -> None:
        """The ranks of other nodes are gone: what they met at may go."""

    def cause_key(self, death: RankDeath) -> tuple[bool, ...]:
        """Sorts causes before effects."""


class RanksLostError(Exception):
    """A machine of the run is gone, with its ranks."""

    def __init__(self, finding: Finding) -> None:
        self.finding = finding
        super().__init__(finding.what)


class Place(Protocol):
    """Where the ranks of a run are started."""

    @property
    def hosts(self) -> list[str]: ...

    @property
    def address(self) -> str:
        """Where the ranks of all nodes meet."""

    @property
    def count(self) -> int:
        """Number of nodes."""

    @property
    def settings(self) -> Sequence[Setting]:
        """What ranks here are told about the network."""

    def facts(self) -> NodesJoined | None:
        """Return the event that names the nodes; None on one machine."""

    def spread(self, local: LocalRanks, share: Share, order: Order) -> Ranks:
        """Return the ranks of all nodes, of which `local` are those here; the other nodes are
        ordered to start theirs."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a run asks of every other node besides its share of the ranks."""

    wait_s: float = 0.0
    """How long node 0 is looked for if it is lost."""
    plan: str | None = None
    """Digest of the plan that ranks of a job read."""


class ThisMachine:
    """Ranks on this machine alone."""

    address = "127.0.0.1"
    count = 1
    settings: Sequence[Setting] = ()

    @property
    def hosts(self) -> list[str]:
        return [platform.node()]

    def facts(self) -> None:
        return None

    def spread(self, local: LocalRanks, share: Share, order: Order) -> Ranks:
        return local
