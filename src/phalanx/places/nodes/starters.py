"""Starts the ranks of a job or of a launched script on a node that is not node 0."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from phalanx.machine.network import Setting
from phalanx.places.nodes.follower import FOLDER_LAG_S, POLL_S, NotHereError
from phalanx.places.nodes.link import NodeLink
from phalanx.places.nodes.messages import StartShare
from phalanx.planner.schema.plan import Plan
from phalanx.prepare.launcher import Launcher
from phalanx.prepare.rank_environment import rank_environment
from phalanx.run.directory import RunDirectory
from phalanx.scripts.ranks import ScriptRanks, TakeLine
from phalanx.scripts.request import PreparedScript
from phalanx.supervise.rank_group import RankGroup
from phalanx.supervise.rank_usage import RankUsage, driver_numbers


class JobStarter:
    """Ranks of a job."""

    def __init__(self, launcher: Launcher, settings: Sequence[Setting]) -> None:
        self._launcher = launcher
        self._settings = settings

    def make(self, order: StartShare, link: NodeLink) -> tuple[RankGroup, RankUsage]:
        share = order.share
        run = RunDirectory(share.run)
        plan = _read_plan(run, order.order.plan, link)
        environment = rank_environment(run, plan, self._settings)
        usage = RankUsage(driver_numbers(run, plan), first=share.first)
        return RankGroup(self._launcher, share, environment), usage


class ScriptStarter:
    """Ranks of a launched script."""

    def __init__(self, prepared: PreparedScript, on_line: TakeLine) -> None:
        self._prepared = prepared
        self._on_line = on_line

    def make(self, order: StartShare, link: NodeLink) -> tuple[ScriptRanks, RankUsage]:
        share = order.share
        logs = RunDirectory(share.run).logs
        deadline = time.monotonic() + FOLDER_LAG_S
        while not logs.is_dir() and time.monotonic() < deadline and link.lost is None:
            time.sleep(POLL_S)
        usage = RankUsage(self._prepared.gpus, first=share.first)
        return ScriptRanks(self._prepared, share, self._on_line), usage


def _read_plan(run: RunDirectory, digest: str | None, link: NodeLink) -> Plan:
    deadline = time.monotonic() + FOLDER_LAG_S
    while time.monotonic() < deadline and link.lost is None:
        try:
            plan = Plan.from_json(json.loads(run.plan_file.read_text(encoding="utf-8")))
            if plan.digest() == digest:
                return plan
        except (OSError, ValueError, KeyError, TypeError):
            pass
        time.sleep(POLL_S)
    error = f"`{run.plan_file}` is not there, or another one than on node 0"
    raise NotHereError(error)
