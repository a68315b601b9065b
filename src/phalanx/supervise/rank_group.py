"""The ranks of one attempt, as the supervisor sees them: started and watched by torch's elastic
agent, which runs in the launcher (engine/launcher/serve.py)."""

from __future__ import annotations

import os
import time
from signal import SIGKILL, SIGTERM, Signals

from phalanx.prepare.launcher import Launcher, LauncherError
from phalanx.run.channel import Message
from phalanx.run.event_kinds import Usage
from phalanx.run.heartbeat import Beat
from phalanx.run.launching import (
    AskStacks,
    Beats,
    PeersOver,
    RankDeath,
    RanksEnded,
    RanksFailed,
    RanksStarted,
    SendSignal,
    Share,
    Stacks,
    StartRanks,
    StoreOpened,
    Witness,
)
from phalanx.supervise.place import RankStart

_END_S = 20.0
_POLL_S = 0.1


class RankGroup:
    """The ranks of a job on this machine."""

    def __init__(self, launcher: Launcher, share: Share, environment: dict[str, str]) -> None:
        self._launcher = launcher
        self._share = share
        self._environment = environment
        self.asked: list[Signals] = []
        self.is_running = True
        self.starts: list[RankStart] | None = None
        self.meeting_port: int | None = None
        self.deaths: list[RankDeath] = []
        self.error: BaseException | None = None
        self.beats: dict[int, Beat] = {}
        self.witnesses: list[Witness] | None = None

    @property
    def pids(self) -> list[int]:
        return [start.pid for start in self.starts or ()]

    def start(self) -> None:
        share = self._share
        own = {"PHALANX_ATTEMPT": str(share.attempt)}
        environment = {**os.environ, **self._environment, **own}
        try:
            self._launcher.request(StartRanks(share, environment))
        except LauncherError as error:
            self._fail(error)

    def wait(self, timeout_s: float) -> None:
        while self.is_running:
            try:
                message = self._launcher.receive(timeout_s)
            except LauncherError as error:
                self._fail(error)
                return
            if message is None:
                return
            self._take(message)
            timeout_s = 0  # whatever else has come meanwhile

    def signal(self, number: Signals) -> bool:
        if not self.is_running:
            return False
        if self.starts is None:
            if number == SIGKILL:
                self._launcher.kill()
            return number == SIGKILL
        self._send(SendSignal(number))
        return True

    def end(self) -> None:
        self.signal(SIGTERM)

    def kill(self) -> None:
        deadline = time.monotonic() + _END_S
        while self.is_running:
            self.signal(SIGKILL)
            self.wait(_POLL_S)
            if time.monotonic() > deadline:
                self._launcher.kill()
                break

    def close(self) -> None:
        """Ranks that still run end with the launcher, in order."""

    def ask_where(self) -> None:
        self._send(AskStacks())

    def tell_peers_over(self) -> None:
        self._send(PeersOver())

    def take_usage(self) -> list[Usage]:
        return []

    def cause_key(self, death: RankDeath) -> tuple[bool, ...]:
        return cause_first(death)[:-1]

    def _send(self, message: Message) -> None:
        if not self.is_running:
            return
        try:
            self._launcher.send(message)
        except LauncherError as error:
            self._fail(error)

    def _take(self, message: Message) -> None:
        match message:
            case StoreOpened(port):
                self.meeting_port = port
            case RanksStarted(pids):
                self.starts = [RankStart(pid) for pid in pids]
            case Beats(beats):
                self.beats = {beat.rank: beat for beat in beats}
            case Stacks(witnesses):
                self.witnesses = witnesses
            case RanksEnded(deaths):
                self.deaths = sorted(deaths, key=cause_first)
                self.is_running = False
            case RanksFailed(error):
                self._fail(LauncherError(error))

    def _fail(self, error: LauncherError) -> None:
        self.error = error
        self.is_running = False


def cause_first(death: RankDeath) -> tuple[bool, bool, bool, int]:
    """A killed rank is the cause; peers that failed, or that the agent ended, are the effect."""
    return death.was_ended, death.exit_code > 0, death.exit_code == -SIGTERM, death.rank


def kill_reason(name: str) -> str:
    """Who sends this signal to a rank, as a rule."""
    if name == "SIGKILL":
        return "by the kernel when memory ran out, by a scheduler, or by somebody's `kill -9`"
    if name == "SIGILL":
        return "an instruction this CPU does not have; `phalanx check` tries each precision"
    return "a crash in native code" if name in ("SIGSEGV", "SIGABRT", "SIGBUS") else "from outside"
