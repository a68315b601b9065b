"""The ranks of one attempt, as the supervisor sees them: started and watched by torch's elastic
agent, which runs in the launcher (engine/launcher/serve.py)."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.prepare.launcher import Launcher, LauncherError
from phalanx.run.heartbeat import Beat
from phalanx.supervise.culprit import Witness


@dataclass(frozen=True)
class RankDeath:
    """A rank that did not end in order."""

    rank: int
    exit_code: int
    """Negative: killed by that signal."""
    was_ended: bool = False
    """By the agent, because another one had died before."""


class RankGroup:
    """The ranks of one attempt."""

    def __init__(
        self,
        launcher: Launcher,
        run_path: Path,
        *,
        ranks: int,
        attempt: int,
        env: dict[str, str],
        node: dict[str, Any] | None = None,
    ) -> None:
        """`node`: where these ranks stand among those of other nodes, and where all of them
        meet."""
        self._launcher = launcher
        self._request = {"run": str(run_path), "ranks": ranks, "attempt": attempt, **(node or {})}
        self._env = {**os.environ, **env, "PHALANX_ATTEMPT": str(attempt)}
        self._is_started = False
        self._is_over = False
        self.asked = 0
        """How often another node was asked to stop: there is none."""
        self.pids: list[int] = []
        """The processes of the ranks here, in their order, once they are started."""
        self.store_port: int | None = None
        """Where the ranks of all nodes meet, once the agent of node 0 listens there."""
        self.deaths: list[RankDeath] = []
        self.error: BaseException | None = None
        self.beats: dict[int, Beat] = {}
        """Where each rank is, as last heard."""
        self.beats_told = 0
        """How often that was heard."""
        self.witnesses: list[Witness] | None = None
        """What the ranks say about where they are stuck, once they were asked."""

    def start(self) -> None:
        try:
            self._launcher.request(self._request, self._env)
        except LauncherError as error:
            self._fail(error)

    def take_usage(self) -> list[dict[str, Any]]:
        """What ranks on other nodes used: there are none."""
        return []

    @property
    def is_running(self) -> bool:
        self.wait(0)
        return not self._is_over

    @property
    def is_started(self) -> bool:
        return self._is_started

    @property
    def is_over(self) -> bool:
        """As far as is known, without asking."""
        return self._is_over

    def ask_where(self) -> None:
        """Have every rank say where it is stuck; `witnesses` tells when it has."""
        try:
            self._launcher.send({"stacks": 1})
        except LauncherError as error:
            self._fail(error)

    def tell_peers_over(self) -> None:
        """Let the agent of node 0 go: no rank of another node needs its store."""
        if not self._is_over:
            try:
                self._launcher.send({"peers": "over"})
            except LauncherError as error:
                self._fail(error)

    def wait(self, timeout_s: float) -> None:
        """Wait for news of the ranks, at most this long."""
        if self._is_over:
            return
        try:
            answer = self._launcher.receive(timeout_s)
        except LauncherError as error:
            self._fail(error)
            return
        if answer is not None:
            self._take(answer)

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal to every rank; SIGKILL also takes their loader processes. False when there
        are none yet."""
        if self._is_over:
            return False
        if not self._is_started:
            if number == signal.SIGKILL:
                self._launcher.kill()
            return number == signal.SIGKILL
        try:
            self._launcher.send({"signal": int(number)})
        except LauncherError as error:
            self._fail(error)
        return True

    def _take(self, answer: dict[str, Any]) -> None:
        if "store" in answer:
            self.store_port = answer["store"]
            return
        if "started" in answer:
            self._is_started, self.pids = True, answer["started"]
            return
        if "beats" in answer:
            beats = map(Beat.from_json, answer["beats"])
            self.beats = {beat.rank: beat for beat in beats}
            self.beats_told += 1
            return
        if "stacks" in answer:
            self.witnesses = [Witness(**record) for record in answer["stacks"]]
            return
        if "error" in answer:
            self.error = LauncherError(answer["error"])
        else:
            deaths = [RankDeath(*record) for record in answer["failures"]]
            self.deaths = sorted(deaths, key=cause_first)
        self._is_over = True

    def _fail(self, error: LauncherError) -> None:
        self.error = error
        self._is_over = True


def cause_first(death: RankDeath) -> tuple[bool, bool, bool, int]:
    """A killed rank is the cause; peers that failed, or that the agent ended, are the effect."""
    return death.was_ended, death.exit_code > 0, death.exit_code == -signal.SIGTERM, death.rank


def kill_reason(name: str) -> str:
    """Who sends this signal to a rank, as a rule."""
    if name == "SIGKILL":
        return "by the kernel when memory ran out, by a scheduler, or by somebody's `kill -9`"
    if name == "SIGILL":
        return "an instruction this CPU does not have; `phalanx check` tries each precision"
    return "a crash in native code" if name in ("SIGSEGV", "SIGABRT", "SIGBUS") else "from outside"
