"""Every node but node 0: starts its ranks when it is told to, says how they ended, and ends as
node 0 has decided. It owns nothing: no plan, no run directory, no restarts."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from phalanx.errors import ExitCode, Finding
from phalanx.places.nodes import findings as say
from phalanx.places.nodes.link import NodeLink
from phalanx.places.nodes.meeting_terms import Met
from phalanx.places.nodes.messages import (
    EndRanks,
    RunEnded,
    ShareBeats,
    ShareEnded,
    ShareStacks,
    ShareStarted,
    ShareUsage,
    StartShare,
    StopRequested,
)
from phalanx.run.channel import Message
from phalanx.run.directory import RunDirectory
from phalanx.run.launching import AskStacks, SendSignal, Share
from phalanx.supervise.place import LocalRanks
from phalanx.supervise.rank_usage import RankUsage
from phalanx.supervise.signals import hearing_stops

POLL_S = 0.1
FOLDER_LAG_S = 60.0
"""A network file system may show a new folder late (NFS: acdirmax)."""
_SENT_LINES = 60  # of a rank that died, for a traceback


class RankStarter(Protocol):
    """Makes the ranks that node 0 orders: those of a job or of a script."""

    def make(self, order: StartShare, link: NodeLink) -> tuple[LocalRanks, RankUsage]:
        """Return the ranks, to be started; raises NotHereError."""


class NotHereError(Exception):
    """What node 0 has written cannot be seen here."""


class NodeFollower:
    """Does what node 0 says until it says how it ended."""

    def __init__(self, met: Met, starter: RankStarter, tell: Callable[[str], None]) -> None:
        self._rank = met.rank
        self._nodes = len(met.members)
        self._link = met.links[0]
        self._rejoin = met.rejoin
        self._starter = starter
        self._tell = tell
        self._attempt = 0
        self._wait_s = 0.0
        """How long node 0 wants to be waited for, as it said last."""
        self._ranks: LocalRanks | None = None
        self._usage: RankUsage | None = None
        self._is_start_told = False
        self._asked: list[signal.Signals] = []
        self._num_told = 0

    def run(self) -> tuple[int, list[Finding], str]:
        """The exit code, Findings and words of node 0, or ours when it is lost."""
        try:
            # As on node 0, which counts them: the first saves and ends, the second ends at once.
            with hearing_stops(self._asked, signal.SIGUSR1):
                return self._run()
        finally:
            self._kill()

    def _run(self) -> tuple[int, list[Finding], str]:
        while True:
            self._report_signals()
            message = self._link.receive(0 if self._ranks is not None else POLL_S)
            if isinstance(message, RunEnded):
                self._kill()
                words = f"{message.status}: {message.reason}".rstrip(": ")
                return message.exit_code, message.findings, words
            if message is not None:
                self._take(message)
            elif self._link.is_over:
                self._kill()
                if self._is_back():
                    continue
                finding = say.node_lost(self._link.name, str(self._link.lost))
                return int(ExitCode.FAILED), [finding], f"failed: {finding.what}"
            if self._ranks is not None:
                self._watch(self._ranks)

    def _take(self, message: Message) -> None:
        if isinstance(message, StartShare):
            self._start(message)
            return
        if self._ranks is None:
            return
        match message:
            case SendSignal(number):
                self._ranks.signal(number)
            case AskStacks():
                self._ranks.ask_where()
            case EndRanks():
                self._ranks.end()

    def _start(self, order: StartShare) -> None:
        self._attempt = order.share.attempt
        try:
            ranks, usage = self._starter.make(order, self._link)
        except NotHereError as error:
            self._link.send(ShareEnded(self._attempt, [], str(error)))
            return
        self._wait_s = order.order.wait_s
        self._say_start(order.share)
        self._ranks, self._usage, self._is_start_told = ranks, usage, False
        ranks.start()

    def _is_back(self) -> bool:
        """Whether node 0, which was lost, is there again; its ranks start when it says so."""
        if not self._wait_s or self._asked:
            return False
        waiting = f"for at most {self._wait_s:.0f} s; the ranks here are ended"
        self._tell(f"{self._link.name} is lost: {self._link.lost}; looking for it {waiting}")
        link = self._rejoin(self._wait_s)
        if link is None:
            return False
        self._link = link
        self._tell(f"{self._link.name} is there again")
        return True

    def _say_start(self, share: Share) -> None:
        first, last = share.first, share.first + share.ranks - 1
        named = f"rank {first}" if first == last else f"ranks {first} to {last}"
        again = f", attempt {self._attempt + 1}" if self._attempt else ""
        logs = RunDirectory(share.run).logs
        self._tell(f"node {self._rank} of {self._nodes} runs {named}{again}; logs: {logs}")

    def _report_signals(self) -> None:
        count = len(self._asked)
        if count > self._num_told:
            self._num_told = count
            self._tell("stopping: node 0 is told, and all nodes stop together")
            self._link.send(StopRequested(count, self._asked[0]))

    def _watch(self, ranks: LocalRanks) -> None:
        """Wait for news of the ranks, and pass them on."""
        assert self._usage is not None
        beats, witnesses = ranks.beats, ranks.witnesses
        ranks.wait(POLL_S)
        link, attempt = self._link, self._attempt
        if ranks.starts is not None and not self._is_start_told:
            self._is_start_told = True
            link.send(ShareStarted(attempt, ranks.starts))
        if ranks.beats is not beats:
            link.send(ShareBeats(attempt, [*ranks.beats.values()]))
        if samples := self._usage.look(ranks.pids):
            link.send(ShareUsage(attempt, samples))
        if ranks.witnesses is not None and ranks.witnesses is not witnesses:
            link.send(ShareStacks(attempt, ranks.witnesses))
        if ranks.is_running:
            return
        deaths = [replace(death, lines=death.lines[-_SENT_LINES:]) for death in ranks.deaths]
        error = None if ranks.error is None else str(ranks.error)
        link.send(ShareEnded(attempt, deaths, error))
        self._kill()

    def _kill(self) -> None:
        """End the ranks at once: who waits for one that cannot be reached does not listen."""
        if self._ranks is not None:
            self._ranks.kill()
        if self._usage is not None:
            self._usage.close()
        self._ranks = self._usage = None
