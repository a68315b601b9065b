"""Where the ranks of a run are started: on this machine, or on several nodes (places/nodes)."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any, Protocol

from phalanx.errors import Finding
from phalanx.planner.schema.plan import Plan
from phalanx.prepare.launcher import Launcher
from phalanx.prepare.rank_environment import rank_environment
from phalanx.run.directory import RunDirectory
from phalanx.run.events import EventWriter
from phalanx.run.heartbeat import Beat
from phalanx.supervise.culprit import Witness
from phalanx.supervise.rank_group import RankDeath, RankGroup
from phalanx.supervise.recovery import Revision


class Ranks(Protocol):
    """The ranks of one attempt, as the supervisor sees them."""

    error: BaseException | None
    asked: int
    """How often a command of another node was asked to stop."""

    @property
    def pids(self) -> list[int]: ...

    @property
    def beats(self) -> dict[int, Beat]: ...

    @property
    def witnesses(self) -> list[Witness] | None: ...

    @property
    def deaths(self) -> list[RankDeath]: ...

    @property
    def is_running(self) -> bool: ...

    def start(self) -> None: ...

    def wait(self, timeout_s: float) -> None: ...

    def signal(self, number: Any) -> bool: ...

    def ask_where(self) -> None: ...

    def take_usage(self) -> list[dict[str, Any]]: ...


class Place(Protocol):
    """Starts ranks, and knows what to do when some of their machines are lost."""

    @property
    def hosts(self) -> list[str]: ...

    @property
    def is_local(self) -> bool:
        """False where events of other hosts may be seen late."""

    def facts(self) -> dict[str, Any] | None:
        """Return the fields of the `nodes` event; None on one machine."""

    def make_ranks(self, run: RunDirectory, plan: Plan, attempt: int) -> Ranks: ...

    def recover(
        self, plan: Plan, events: EventWriter, is_stopped: Callable[[], bool]
    ) -> tuple[bool, Revision | None]:
        """Return True if ranks can start again after machines were lost, and the plan for those
        that are left."""


class RanksLostError(Exception):
    """A machine of the run is gone, with its ranks."""

    def __init__(self, finding: Finding) -> None:
        self.finding = finding
        super().__init__(finding.what)


class ThisMachine:
    """Ranks on this machine alone."""

    is_local = True

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher

    @property
    def hosts(self) -> list[str]:
        return [platform.node()]

    def facts(self) -> None:
        return None

    def make_ranks(self, run: RunDirectory, plan: Plan, attempt: int) -> RankGroup:
        return RankGroup(
            self._launcher,
            run.path,
            ranks=plan.devices.ranks.value,
            attempt=attempt,
            env=rank_environment(run, plan),
        )

    def recover(
        self, plan: Plan, events: EventWriter, is_stopped: Callable[[], bool]
    ) -> tuple[bool, Revision | None]:
        return False, None
