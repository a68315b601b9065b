"""The ranks of a launched script on several nodes: on node 0 as one group, and on every other node
as what node 0 tells it to run. Each node's ranks print on their own node; logs are in one run
directory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals
from typing import Any

from phalanx.errors import Finding
from phalanx.machine.network import Setting
from phalanx.places.nodes import findings as say
from phalanx.places.nodes.follower import FOLDER_LAG_S, NodeFollower
from phalanx.places.nodes.link import NodeLink
from phalanx.places.nodes.meeting_terms import Met
from phalanx.places.nodes.preflight import wait_for
from phalanx.run.directory import RunDirectory
from phalanx.scripts.environment import Place
from phalanx.scripts.ranks import ScriptRanks, TakeLine, is_echo
from phalanx.scripts.request import PreparedScript
from phalanx.scripts.supervisor import rank_environments
from phalanx.supervise.rank_group import RankDeath

_SENT_LINES = 60  # of a rank that died, for a traceback
_END_S = 5.0
_OURS = (-SIGTERM, -SIGKILL)  # what ranks are ended with when another has died


class NodesScriptRanks:
    """The ranks of one attempt on all nodes; the same to its user as those of one node."""

    def __init__(
        self,
        local: ScriptRanks,
        links: dict[int, NodeLink],
        run: RunDirectory,
        place: Place,
        devices: list[str],
    ) -> None:
        self._local = local
        self._links = links
        self._order = {"run": str(run.path), **asdict(place)}
        self._over: set[int] = set()
        self._lines: dict[int, list[str]] = {}
        self._deaths: list[RankDeath] = []
        self._ended: set[int] = set()
        self._is_local_over = False
        self._ending_since: float | None = None
        self.devices = devices
        """Where each rank computes, those of the other nodes too once they have started."""
        self.asked: list[Signals] = []
        self.lost: Finding | None = None

    @property
    def pids(self) -> list[int]:
        """Of the ranks here: those of others can only be looked at there."""
        return self._local.pids

    @property
    def deaths(self) -> list[RankDeath]:
        """The cause first. News of other nodes come later than what is seen here, so the order in
        which ranks were seen to be gone does not say which that is."""
        return sorted(self._deaths, key=self._is_effect)

    def _is_effect(self, death: RankDeath) -> bool:
        return death.rank in self._ended or is_echo(self.last_lines(death.rank))

    def start(self) -> list[int]:
        """Start all ranks; returns their process ids, each on its own node."""
        for rank, link in self._links.items():
            link.send({"start": {**self._order, "node": rank}})
        pids, devices = self._local.start(), list(self.devices)
        for _, link in sorted(self._links.items()):
            record = wait_for(link, "started", 2 * FOLDER_LAG_S)
            pids, devices = [*pids, *record["pids"]], [*devices, *record["devices"]]
        self.devices = devices
        return pids

    def follow(self, take: TakeLine, timeout_s: float) -> bool:
        """Hand on what was printed here meanwhile; False once all ranks are gone."""
        if self._is_local_over:
            time.sleep(timeout_s)
        else:
            self._is_local_over = not self._local.follow(take, timeout_s)
        self._take([death for death in self._local.deaths if death not in self._deaths])
        for rank, link in self._links.items():
            self._listen(rank, link)
        if self._deaths or self.lost is not None:
            self._end_all()
        return not (self._is_local_over and len(self._over) == len(self._links))

    def pass_on(self, number: Signals) -> None:
        """Send a signal to every rank that still runs."""
        if not self._is_local_over:
            self._local.pass_on(number)
        self._tell({"signal": int(number)})

    def last_lines(self, rank: int) -> list[str]:
        return self._lines.get(rank) or self._local.last_lines(rank)

    def close(self) -> None:
        """End what still runs, at once."""
        self._tell({"signal": int(SIGKILL)})
        self._local.close()

    def _listen(self, rank: int, link: NodeLink) -> None:
        while (record := link.receive(0)) is not None:
            if record.get("over") == self._order["restarts"]:
                self._over.add(rank)
                self._lines |= {int(number): lines for number, lines in record["lines"].items()}
                self._take([RankDeath(number, code) for number, code in record["deaths"]])
            elif "asked" in record:
                missing = record["asked"] - len(self.asked)
                self.asked += [Signals(record["number"])] * max(0, missing)
        if link.is_over and rank not in self._over:
            self._over.add(rank)
            self.lost = self.lost or say.node_lost(link.name, str(link.lost))

    def _take(self, deaths: list[RankDeath]) -> None:
        if self._ending_since is not None:
            self._ended |= {death.rank for death in deaths if death.exit_code in _OURS}
        self._deaths += deaths

    def _end_all(self) -> None:
        """A group that lacks a rank cannot go on. Who has lost a node is not asked twice."""
        now = time.monotonic()
        is_late = self._ending_since is not None and now - self._ending_since > _END_S
        if self.lost is not None or is_late:
            if not self._is_local_over:
                self._local.pass_on(SIGKILL)
            self._tell({"signal": int(SIGKILL)})
        elif self._ending_since is None:
            self._local.end()
            self._tell({"end_ranks": True})
        self._ending_since = self._ending_since or now

    def _tell(self, record: dict[str, Any]) -> None:
        for rank, link in self._links.items():
            if rank not in self._over:
                link.send(record)


class ScriptFollower(NodeFollower):
    """Runs the ranks of a launched script on a node that is not node 0."""

    def __init__(
        self,
        met: Met,
        prepared: PreparedScript,
        *,
        on_line: TakeLine,
        tell: Callable[[str], None],
    ) -> None:
        super().__init__(met, tell)
        self._prepared = prepared
        self._on_line = on_line
        self._ranks: ScriptRanks | None = None

    @property
    def has_ranks(self) -> bool:
        return self._ranks is not None

    def start(self, order: dict[str, Any]) -> None:
        run = RunDirectory(Path(order.pop("run")))
        place = Place(**order)
        self.attempt = place.restarts
        deadline = time.monotonic() + FOLDER_LAG_S
        while not run.logs.is_dir() and time.monotonic() < deadline and self.link.lost is None:
            time.sleep(0.1)
        prepared, first = self._prepared, place.node * place.ranks
        self.say_start(first, place.ranks, run.logs)
        environments = rank_environments(prepared, place, run)
        argv = prepared.argv_of(place.restarts)
        self._ranks = ScriptRanks(run, argv, environments, place.restarts, first=first)
        pids = self._ranks.start()
        self.link.send({"started": self.attempt, "pids": pids, "devices": prepared.devices})

    def end_ranks(self) -> None:
        if self._ranks is not None:
            self._ranks.end()

    def signal(self, number: Signals) -> None:
        if self._ranks is not None:
            self._ranks.pass_on(number)

    def watch(self, timeout_s: float) -> None:
        assert self._ranks is not None
        if self._ranks.follow(self._on_line, timeout_s):
            return
        deaths = self._ranks.deaths
        lines = {d.rank: self._ranks.last_lines(d.rank)[-_SENT_LINES:] for d in deaths}
        self.link.send(
            {
                "over": self.attempt,
                "deaths": [[death.rank, death.exit_code] for death in deaths],
                "lines": lines,
            }
        )
        self.kill()

    def kill(self) -> None:
        if self._ranks is not None:
            self._ranks.close()
        self._ranks = None


def with_network(prepared: PreparedScript, settings: list[Setting]) -> PreparedScript:
    """A script prepared for one node, for several: loopback leads nowhere."""
    alone = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    kept = {name: value for name, value in prepared.variables.items() if name not in alone}
    return replace(prepared, variables=kept | {s.name: s.value for s in settings})
