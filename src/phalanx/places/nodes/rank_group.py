"""The ranks of one attempt over all nodes, as whoever owns them sees them."""

from __future__ import annotations

import time
from dataclasses import replace
from signal import SIGKILL, SIGTERM, Signals

from phalanx.places.nodes import findings as say
from phalanx.places.nodes.link import NodeLink
from phalanx.places.nodes.messages import (
    EndRanks,
    OfAttempt,
    ShareBeats,
    ShareEnded,
    ShareStacks,
    ShareStarted,
    ShareUsage,
    StartShare,
    StopRequested,
)
from phalanx.run.channel import Message
from phalanx.run.event_kinds import Usage
from phalanx.run.heartbeat import Beat
from phalanx.run.launching import AskStacks, RankDeath, SendSignal, Witness
from phalanx.supervise.place import LocalRanks, RanksLostError, RankStart

_END_PEERS_S = 5.0  # SIGTERM to SIGKILL when a rank has died on another node


class NodesGroup:
    """The ranks of one attempt on several nodes: those of this one, and those that the other nodes
    start once it is known where all of them meet."""

    def __init__(self, local: LocalRanks, links: dict[int, NodeLink], order: StartShare) -> None:
        self._local = local
        self._links = links
        self._order = order
        self._is_ordered = False
        self._are_peers_told = False
        self._far_starts: dict[int, list[RankStart]] = {}
        self._far_beats: dict[int, Beat] = {}
        self._far_witnesses: dict[int, list[Witness]] = {}
        self._far_usage: list[Usage] = []
        self._over: set[int] = set()
        self._deaths: dict[int, RankDeath] = {}
        self._is_local_counted = False
        self._ending_since: float | None = None
        self._is_killing = False
        self.error: BaseException | None = None
        self.asked: list[Signals] = []

    @property
    def starts(self) -> list[RankStart] | None:
        mine = self._local.starts
        if mine is None or len(self._far_starts) < len(self._links):
            return None
        return [*mine, *(start for _, far in sorted(self._far_starts.items()) for start in far)]

    @property
    def pids(self) -> list[int]:
        return self._local.pids

    @property
    def beats(self) -> dict[int, Beat]:
        return {**self._local.beats, **self._far_beats}

    @property
    def witnesses(self) -> list[Witness] | None:
        mine = self._local.witnesses
        if mine is None or len(self._far_witnesses) < len(self._links):
            return None
        return [*mine, *(w for far in self._far_witnesses.values() for w in far)]

    @property
    def deaths(self) -> list[RankDeath]:
        """Ranks that ended by themselves first. News of other nodes come later than what is seen
        here, so the order in which ranks were seen to be gone does not say which that is."""
        printed = {death.rank: death.lines for death in self._local.deaths}
        found = [
            replace(death, lines=printed.get(death.rank, death.lines))
            for death in self._deaths.values()
        ]
        return sorted(found, key=self._local.cause_key)

    @property
    def is_running(self) -> bool:
        return self._local.is_running or len(self._over) < len(self._links)

    def start(self) -> None:
        self._local.start()

    def wait(self, timeout_s: float) -> None:
        if self._local.is_running:
            self._local.wait(timeout_s)
        elif timeout_s:
            time.sleep(timeout_s)
        self._order_others()
        self._count([d for d in self._local.deaths if d.rank not in self._deaths])
        if not self._local.is_running and not self._is_local_counted:
            self._is_local_counted = True
            self._count([], self._local.error)
        for node, link in self._links.items():
            self._listen(node, link)
        self._end_peers()

    def signal(self, number: Signals) -> bool:
        if number == SIGKILL:
            self._kill()
            return True
        is_here = self._local.starts is not None or not self._local.is_running
        if (
            not self.is_running
            or not is_here
            or self._far_starts.keys() | self._over < self._links.keys()
        ):
            return False
        self._local.signal(number)
        self._tell(SendSignal(number))
        return True

    def ask_where(self) -> None:
        self._local.ask_where()
        self._tell(AskStacks())

    def take_usage(self) -> list[Usage]:
        taken, self._far_usage = self._far_usage, []
        return taken

    def close(self) -> None:
        """End what still runs on other nodes, at once."""
        self._tell(SendSignal(SIGKILL))
        self._local.close()

    def _order_others(self) -> None:
        port = self._local.meeting_port
        if port is None or self._is_ordered:
            return
        self._is_ordered = True
        for number, (_, link) in enumerate(sorted(self._links.items()), start=1):
            share = replace(self._order.share, node=number, port=port)
            link.send(replace(self._order, share=share))

    def _listen(self, node: int, link: NodeLink) -> None:
        while (message := link.receive(0)) is not None:
            if isinstance(message, OfAttempt) and message.attempt != self._order.share.attempt:
                continue  # of ranks that are gone
            match message:
                case ShareStarted(_, starts):
                    self._far_starts[node] = starts
                case ShareBeats(_, beats):
                    self._far_beats |= {beat.rank: beat for beat in beats}
                case ShareUsage(_, samples):
                    self._far_usage += samples
                case ShareStacks(_, witnesses):
                    self._far_witnesses[node] = witnesses
                case ShareEnded(_, deaths, error):
                    self._over.add(node)
                    told = None if error is None else RuntimeError(f"{link.name}: {error}")
                    self._count(deaths, told)
                case StopRequested(count, number):
                    self.asked += [number] * max(0, count - len(self.asked))
        if link.is_over and node not in self._over:
            self._over.add(node)
            lost = RanksLostError(say.node_lost(link.name, str(link.lost)))
            self.error = self.error if isinstance(self.error, RanksLostError) else lost
            self._kill()

    def _count(self, deaths: list[RankDeath], error: BaseException | None = None) -> None:
        for death in deaths:
            is_ours = self._ending_since is not None and death.exit_code == -SIGTERM
            was_ended = death.was_ended or self._is_killing or is_ours
            self._deaths[death.rank] = replace(death, was_ended=was_ended)
        if error is not None and self.error is None and not self._is_killing:
            self.error = error
        if (deaths or error is not None) and self._ending_since is None:
            self._ending_since = time.monotonic()
            self._local.end()
            self._tell(EndRanks())

    def _end_peers(self) -> None:
        """A group that lacks a rank cannot go on; what all met at goes when nobody needs it."""
        if len(self._over) == len(self._links) and not self._are_peers_told:
            self._are_peers_told = True
            self._local.tell_peers_over()
        since = self._ending_since
        if since is not None and time.monotonic() - since > _END_PEERS_S and not self._is_killing:
            self._kill()

    def _kill(self) -> None:
        self._is_killing = True
        self._ending_since = self._ending_since or time.monotonic()
        self._local.signal(SIGKILL)
        self._tell(SendSignal(SIGKILL))
        if not self._is_ordered:  # nobody was asked to start anything
            self._over |= set(self._links)

    def _tell(self, message: Message) -> None:
        """Tell the nodes whose ranks are not gone."""
        for node, link in self._links.items():
            if node not in self._over:
                link.send(message)
