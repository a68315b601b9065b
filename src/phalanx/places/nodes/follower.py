"""Every node but node 0: starts its ranks when it is told to, says how they ended, and ends as
node 0 has decided. It owns nothing: no plan, no run directory, no restarts."""

from __future__ import annotations

import json
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from phalanx.errors import ExitCode, Finding
from phalanx.places.nodes import findings as say
from phalanx.places.nodes.meeting_terms import Met
from phalanx.planner.schema.plan import Plan
from phalanx.prepare.launcher import Launcher
from phalanx.prepare.rank_environment import rank_environment
from phalanx.run.directory import RunDirectory
from phalanx.supervise.rank_group import RankGroup
from phalanx.supervise.rank_usage import RankUsage
from phalanx.supervise.signals import hearing_stops

POLL_S = 0.1
FOLDER_LAG_S = 60.0
"""A network file system may show a new folder late (NFS: acdirmax)."""
_END_S = 20.0


class NodeFollower(ABC):
    """Does what node 0 says until it says how it ended."""

    def __init__(self, met: Met, tell: Callable[[str], None]) -> None:
        self.rank = met.rank
        self.nodes = len(met.members)
        self.link = met.links[0]
        self.attempt = 0
        self.wait_s = 0.0
        """How long node 0 wants to be waited for, as it said last."""
        self._rejoin = met.rejoin
        self._tell = tell
        self._asked: list[signal.Signals] = []
        self._num_told = 0

    @property
    @abstractmethod
    def has_ranks(self) -> bool:
        """Whether ranks run here."""

    @abstractmethod
    def start(self, order: dict[str, Any]) -> None:
        """Start the ranks that node 0 wants."""

    @abstractmethod
    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the ranks."""

    @abstractmethod
    def watch(self, timeout_s: float) -> None:
        """Wait for news of the ranks, at most this long, and pass them on."""

    @abstractmethod
    def kill(self) -> None:
        """End the ranks at once: who waits for one that cannot be reached does not listen."""

    def end_ranks(self) -> None:
        """End the ranks in order: one of another node has died."""
        self.signal(signal.SIGTERM)

    def ask_where(self) -> None:  # noqa: B027 - ranks of a script say nothing
        """Have the ranks say where they are stuck."""

    def run(self) -> tuple[int, list[Finding], str]:
        """The exit code, Findings and words of node 0, or ours when it is lost."""
        try:
            # As on node 0, which counts them: the first saves and ends, the second ends at once.
            with hearing_stops(self._asked, signal.SIGUSR1):
                return self._run()
        finally:
            self.kill()

    def _run(self) -> tuple[int, list[Finding], str]:
        while True:
            self._report_signals()
            record = self.link.receive(0 if self.has_ranks else POLL_S)
            if record is not None and "end" in record:
                self.kill()
                findings = [Finding.from_json(one) for one in record["findings"]]
                words = f"{record['end']}: {record['reason']}".rstrip(": ")
                return record["exit_code"], findings, words
            if record is not None and "start" in record:
                self.start(record["start"])
            elif record is not None and "signal" in record:
                self.signal(signal.Signals(record["signal"]))
            elif record is not None and "stacks" in record:
                self.ask_where()
            elif record is not None and "end_ranks" in record:
                self.end_ranks()
            elif self.link.is_over:
                self.kill()
                if self._is_back():
                    continue
                finding = say.node_lost(self.link.name, str(self.link.lost))
                return int(ExitCode.FAILED), [finding], f"failed: {finding.what}"
            if self.has_ranks:
                self.watch(POLL_S)

    def _is_back(self) -> bool:
        """Whether node 0, which was lost, is there again; its ranks start when it says so."""
        if not self.wait_s or self._asked:
            return False
        waiting = f"for at most {self.wait_s:.0f} s; the ranks here are ended"
        self._tell(f"{self.link.name} is lost: {self.link.lost}; looking for it {waiting}")
        link = self._rejoin(self.wait_s)
        if link is None:
            return False
        self.link = link
        self._tell(f"{self.link.name} is there again")
        return True

    def say_start(self, first: int, ranks: int, logs: Path) -> None:
        last = first + ranks - 1
        named = f"rank {first}" if first == last else f"ranks {first} to {last}"
        again = f", attempt {self.attempt + 1}" if self.attempt else ""
        self._tell(f"node {self.rank} of {self.nodes} runs {named}{again}; logs: {logs}")

    def _report_signals(self) -> None:
        count = len(self._asked)
        if count > self._num_told:
            self._num_told = count
            self._tell("stopping: node 0 is told, and all nodes stop together")
            self.link.send({"asked": count, "number": int(self._asked[0])})


class TrainFollower(NodeFollower):
    """Runs the ranks of a training run on a node that is not node 0."""

    def __init__(
        self,
        met: Met,
        launcher: Launcher,
        tell: Callable[[str], None],
    ) -> None:
        super().__init__(met, tell)
        self._launcher = launcher
        self._settings = met.settings
        self._group: RankGroup | None = None
        self._usage: RankUsage | None = None

    @property
    def has_ranks(self) -> bool:
        return self._group is not None

    def start(self, order: dict[str, Any]) -> None:
        self.attempt = order["attempt"]
        run = RunDirectory(Path(order["run"]))
        plan = self._read_plan(run, order["plan"])
        if plan is None:
            error = f"`{run.plan_file}` is not there, or another one than on node 0"
            self.link.send({"over": self.attempt, "deaths": [], "error": error})
            return
        self.wait_s = order["wait_s"]
        first = order["node"] * order["ranks"]
        self.say_start(first, order["ranks"], run.logs)
        self._usage = RankUsage(run, plan, first=first)
        where = {"node": order["node"], "nodes": order["nodes"]}
        self._group = RankGroup(
            self._launcher,
            run.path,
            ranks=order["ranks"],
            attempt=self.attempt,
            env=rank_environment(run, plan, self._settings),
            node={**where, "address": order["address"], "port": order["port"]},
        )
        self._group.start()

    def signal(self, number: signal.Signals) -> None:
        if self._group is not None:
            self._group.signal(number)

    def ask_where(self) -> None:
        if self._group is not None:
            self._group.ask_where()

    def watch(self, timeout_s: float) -> None:
        group = self._group
        assert group is not None
        was_started = group.is_started
        told, had_witnesses = group.beats_told, group.witnesses is not None
        group.wait(timeout_s)
        if group.beats_told > told:
            beats = [beat.to_json() for beat in group.beats.values()]
            self.link.send({"beats": beats, "attempt": self.attempt})
        assert self._usage is not None
        if samples := self._usage.look(group.pids):
            self.link.send({"usage": samples, "attempt": self.attempt})
        if group.witnesses is not None and not had_witnesses:
            stacks = [vars(witness) for witness in group.witnesses]
            self.link.send({"stacks": stacks, "attempt": self.attempt})
        if group.is_started and not was_started:
            self.link.send({"started": self.attempt})
        if not group.is_over:
            return
        self._group = None
        self._usage.close()
        error = None if group.error is None else str(group.error)
        deaths = [[d.rank, d.exit_code, d.was_ended] for d in group.deaths]
        self.link.send({"over": self.attempt, "deaths": deaths, "error": error})

    def kill(self) -> None:
        deadline = time.monotonic() + _END_S
        while self._group is not None and not self._group.is_over:
            self._group.signal(signal.SIGKILL)
            self._group.wait(POLL_S)
            if time.monotonic() > deadline:
                self._launcher.kill()
                break
        self._group = None

    def _read_plan(self, run: RunDirectory, digest: str) -> Plan | None:
        deadline = time.monotonic() + FOLDER_LAG_S
        while time.monotonic() < deadline and self.link.lost is None:
            try:
                plan = Plan.from_json(json.loads(run.plan_file.read_text(encoding="utf-8")))
                if plan.digest() == digest:
                    return plan
            except (OSError, ValueError, KeyError, TypeError):
                pass
            time.sleep(POLL_S)
        return None
