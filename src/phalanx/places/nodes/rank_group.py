"""The ranks of one attempt over all nodes, as the supervisor sees them."""

from __future__ import annotations

import time
from dataclasses import replace
from signal import SIGKILL, SIGTERM, Signals
from typing import Any

from phalanx.places.nodes import findings as say
from phalanx.places.nodes.link import NodeLink
from phalanx.prepare.launcher import Launcher
from phalanx.run.heartbeat import Beat
from phalanx.supervise.culprit import Witness
from phalanx.supervise.place import RanksLostError
from phalanx.supervise.rank_group import RankDeath, RankGroup, cause_first

_END_PEERS_S = 5.0  # SIGTERM to SIGKILL when a rank has died on another node


class NodesGroup:
    """The ranks of one attempt on several nodes: those of this one, which holds the store that all
    of them meet at, and those that the other nodes start when it is there."""

    def __init__(
        self,
        local: RankGroup,
        links: dict[int, NodeLink],
        order: dict[str, Any],
        launcher: Launcher,
    ) -> None:
        self._local = local
        self._links = links
        self._order = order
        self._launcher = launcher
        self._is_ordered = False
        self._are_peers_told = False
        self._started: set[int] = set()
        self._over: set[int] = set()
        self._ending_since: float | None = None
        self._is_killing = False
        self._early: list[RankDeath] = []
        self._late: list[RankDeath] = []
        self._local_counted = False
        self.error: BaseException | None = None
        self.asked = 0
        """How often the node that was asked most often was asked to stop."""
        self._far_beats: dict[int, Beat] = {}
        self._far_witnesses: dict[int, list[Witness]] = {}
        self._far_usage: list[dict[str, Any]] = []

    @property
    def pids(self) -> list[int]:
        """Of the ranks here."""
        return self._local.pids

    def take_usage(self) -> list[dict[str, Any]]:
        """What the ranks of other nodes used, as these nodes have said since this was last
        asked."""
        taken, self._far_usage = self._far_usage, []
        return taken

    @property
    def beats(self) -> dict[int, Beat]:
        """Where each rank is, as last heard."""
        return {**self._local.beats, **self._far_beats}

    @property
    def witnesses(self) -> list[Witness] | None:
        """What the ranks of all nodes say about where they are stuck; None while some are to be
        heard."""
        mine = self._local.witnesses
        if mine is None or len(self._far_witnesses) < len(self._links):
            return None
        return [*mine, *(w for far in self._far_witnesses.values() for w in far)]

    def ask_where(self) -> None:
        """Have every rank say where it is stuck; `witnesses` tells when all have."""
        self._local.ask_where()
        for link in self._links.values():
            link.send({"stacks": 1})

    @property
    def deaths(self) -> list[RankDeath]:
        """Those that ended by themselves first."""
        return [*sorted(self._early, key=cause_first), *sorted(self._late, key=cause_first)]

    def start(self) -> None:
        self._local.start()

    @property
    def is_running(self) -> bool:
        self.wait(0)
        return not (self._local.is_over and len(self._over) == len(self._links))

    def wait(self, timeout_s: float) -> None:
        """Wait for news of the ranks, at most this long."""
        if self._local.is_over:
            if timeout_s:
                time.sleep(timeout_s)
        else:
            self._local.wait(timeout_s)
        if self._local.store_port is not None and not self._is_ordered:
            self._is_ordered = True
            for number, (_, link) in enumerate(sorted(self._links.items()), start=1):
                where = {"node": number, "port": self._local.store_port}
                link.send({"start": {**self._order, **where}})
        for rank, link in self._links.items():
            self._listen(rank, link)
        if self._local.is_over and not self._local_counted:
            self._local_counted = True
            self._count(self._local.deaths, self._local.error)
        self._end_peers()

    def signal(self, number: Signals) -> bool:
        """Send a signal to every rank. False when some are not there yet."""
        if number == SIGKILL:
            self._kill()
            return True
        is_there = self._local.is_started and len(self._started) == len(self._links)
        if not is_there or self._local.is_over:
            return False
        self._local.signal(number)
        for link in self._links.values():
            link.send({"signal": int(number)})
        return True

    def _listen(self, rank: int, link: NodeLink) -> None:
        while (record := link.receive(0)) is not None:
            if "started" in record:
                self._started.add(rank)
            elif "over" in record and record["over"] == self._order["attempt"]:
                self._over.add(rank)
                deaths = [RankDeath(*one) for one in record["deaths"]]
                error = record["error"]
                told = None if error is None else RuntimeError(f"{link.name}: {error}")
                self._count(deaths, told)
            elif record.get("attempt", self._order["attempt"]) != self._order["attempt"]:
                continue  # of ranks that are gone
            elif "beats" in record:
                self._far_beats |= {b.rank: b for b in map(Beat.from_json, record["beats"])}
            elif "usage" in record:
                self._far_usage += record["usage"]
            elif "stacks" in record:
                self._far_witnesses[rank] = [Witness(**one) for one in record["stacks"]]
            elif "asked" in record:
                self.asked = max(self.asked, record["asked"])
        if link.is_over and rank not in self._over:
            self._over.add(rank)
            lost = RanksLostError(say.node_lost(link.name, str(link.lost)))
            self.error = self.error if isinstance(self.error, RanksLostError) else lost
            self._kill()

    def _count(self, deaths: list[RankDeath], error: BaseException | None) -> None:
        if self._is_killing:
            self._late.extend(replace(death, was_ended=True) for death in deaths)
        else:
            self._early.extend(deaths)
        if error is not None and self.error is None and not self._is_killing:
            self.error = error
        if (deaths or error is not None) and self._ending_since is None:
            self._ending_since = time.monotonic()
            self._signal_all(SIGTERM)

    def _end_peers(self) -> None:
        """A group that lacks a rank cannot go on; the store is let go when nobody needs it."""
        if len(self._over) == len(self._links) and not self._are_peers_told:
            self._are_peers_told = True
            self._local.tell_peers_over()
        since = self._ending_since
        if since is not None and time.monotonic() - since > _END_PEERS_S and not self._is_killing:
            self._kill()

    def _kill(self) -> None:
        self._is_killing = True
        self._ending_since = self._ending_since or time.monotonic()
        self._signal_all(SIGKILL)
        if not self._is_ordered:  # nobody was asked to start anything
            self._over |= set(self._links)

    def _signal_all(self, number: Signals) -> None:
        self._local.signal(number)
        for rank, link in self._links.items():
            if rank not in self._over:
                link.send({"signal": int(number)})
