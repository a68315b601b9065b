"""Every node but node 0: starts its ranks when it is told to, says how they ended, and ends as
node 0 has decided. It owns nothing: no plan, no run directory, no restarts."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from phalanx.errors import ExitCode, Finding
from phalanx.launch import node_findings as say
from phalanx.launch.agent import RankGroup
from phalanx.launch.launcher import Launcher
from phalanx.launch.meeting_terms import Met
from phalanx.launch.rank_environment import rank_environment
from phalanx.machine.network import Setting
from phalanx.planner.plan import Plan
from phalanx.run.directory import RunDirectory

_POLL_S = 0.1
_FOLDER_LAG_S = 60.0  # a network file system may show a new folder late (NFS: acdirmax)
_END_S = 20.0


class NodeFollower:
    """Does what node 0 says until it says how it ended."""

    def __init__(
        self,
        met: Met,
        launcher: Launcher,
        settings: list[Setting],
        tell: Callable[[str], None],
    ) -> None:
        self._rank = met.rank
        self._nodes = len(met.members)
        self._link = met.links[0]
        self._launcher = launcher
        self._settings = settings
        self._tell = tell
        self._group: RankGroup | None = None
        self._attempt = 0
        self._signals = 0
        self._told_signals = 0

    def run(self) -> tuple[int, list[Finding], str]:
        """The exit code, Findings and words of node 0, or ours when it is lost."""
        with self._handling_signals():
            while True:
                self._report_signals()
                record = self._link.receive(0 if self._group is not None else _POLL_S)
                if record is not None and "end" in record:
                    return self._end(record)
                if record is not None:
                    self._take(record)
                elif self._link.is_over:
                    return self._alone()
                if self._group is not None:
                    self._watch(self._group)

    def _take(self, record: dict[str, Any]) -> None:
        if "start" in record:
            self._start(record["start"])
        elif "signal" in record and self._group is not None:
            self._group.signal(signal.Signals(record["signal"]))

    def _start(self, order: dict[str, Any]) -> None:
        self._attempt = order["attempt"]
        run = RunDirectory(Path(order["run"]))
        plan = self._read_plan(run, order["plan"])
        if plan is None:
            error = f"`{run.plan_file}` is not there, or another one than on node 0"
            self._link.send({"over": self._attempt, "deaths": [], "error": error})
            return
        first = self._rank * order["ranks"]
        last = first + order["ranks"] - 1
        ranks = f"rank {first}" if first == last else f"ranks {first} to {last}"
        again = f", attempt {self._attempt + 1}" if self._attempt else ""
        self._tell(f"node {self._rank} of {self._nodes} runs {ranks}{again}; logs: {run.logs}")
        self._group = RankGroup(
            self._launcher,
            run.path,
            ranks=order["ranks"],
            attempt=self._attempt,
            env=rank_environment(run, plan, self._settings),
            node={
                "node": self._rank,
                "nodes": self._nodes,
                "address": order["address"],
                "port": order["port"],
            },
        )
        self._group.start()

    def _read_plan(self, run: RunDirectory, digest: str) -> Plan | None:
        deadline = time.monotonic() + _FOLDER_LAG_S
        while time.monotonic() < deadline and self._link.lost is None:
            try:
                plan = Plan.from_json(json.loads(run.plan_file.read_text(encoding="utf-8")))
                if plan.digest() == digest:
                    return plan
            except (OSError, ValueError, KeyError, TypeError):
                pass
            time.sleep(_POLL_S)
        return None

    def _watch(self, group: RankGroup) -> None:
        was_started = group.is_started
        group.wait(_POLL_S)
        if group.is_started and not was_started:
            self._link.send({"started": self._attempt})
        if not group.is_over:
            return
        self._group = None
        error = None if group.error is None else str(group.error)
        deaths = [[death.rank, death.exit_code] for death in group.deaths]
        self._link.send({"over": self._attempt, "deaths": deaths, "error": error})

    def _report_signals(self) -> None:
        if self._signals > self._told_signals:
            self._told_signals = self._signals
            self._tell("stopping: node 0 is told, and all nodes stop together")
            self._link.send({"asked": self._signals})

    def _end(self, record: dict[str, Any]) -> tuple[int, list[Finding], str]:
        self._kill_ranks()
        findings = [Finding.from_json(one) for one in record["findings"]]
        return record["exit_code"], findings, f"{record['end']}: {record['reason']}".rstrip(": ")

    def _alone(self) -> tuple[int, list[Finding], str]:
        self._kill_ranks()
        finding = say.node_lost(self._link.name, str(self._link.lost))
        return int(ExitCode.FAILED), [finding], f"failed: {finding.what}"

    def _kill_ranks(self) -> None:
        """At once: who waits for a rank that cannot be reached does not listen."""
        deadline = time.monotonic() + _END_S
        while self._group is not None and not self._group.is_over:
            self._group.signal(signal.SIGKILL)
            self._group.wait(_POLL_S)
            if time.monotonic() > deadline:
                self._launcher.kill()
                break

    @contextmanager
    def _handling_signals(self) -> Iterator[None]:
        """As on node 0, which counts them: the first saves and ends, the second ends at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handle(number: int, frame: FrameType | None) -> None:
            if number != signal.SIGUSR1 or self._signals == 0:
                self._signals += 1

        handled = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
        before = {n: signal.signal(n, handle) for n in handled}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
