"""A job that torchrun has started: its processes become the ranks, and none is started beside them.

    torchrun --nproc-per-node 2 -m phalanx train JOB

The command of rank 0 plans, opens the run directory and owns the run as always; what it would ask
the launcher for is one process, its own rank. The other commands start theirs at once, and these
wait at torchrun's store for the run directory (engine/launcher/torchrun_rank.py).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from phalanx.codec import to_json
from phalanx.errors import ExitCode, Finding, UserError
from phalanx.prepare.compile_cache import early_variables
from phalanx.prepare.launcher import READ_LATE, Launcher, LauncherError
from phalanx.run.channel import Message
from phalanx.run.directory import RunDirectory
from phalanx.run.event_kinds import Outcome
from phalanx.run.events import read_events
from phalanx.run.holder import this_process
from phalanx.run.launching import (
    JoinedRun,
    RankDeath,
    RanksEnded,
    RanksStarted,
    SendSignal,
    Share,
    StartRanks,
)
from phalanx.run.lock import read_holder
from phalanx.supervise.signals import hearing_stops

if TYPE_CHECKING:  # a command that is not under torchrun waits for none of these
    from phalanx.job.schema import Job
    from phalanx.machine import Machine
    from phalanx.prepare.plan import Prepared

_POLL_S = 0.1
_OTHERS_S = 60.0  # the first rank is done: the others have only to say so


@dataclass(frozen=True)
class Torchrun:
    """The place that torchrun has given this process."""

    rank: int
    ranks: int
    node_ranks: int
    restarts: int

    @classmethod
    def find(cls, environment: Mapping[str, str] = os.environ) -> Torchrun | None:
        """None when this process was not started by torchrun, or by what does as it does."""
        names = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")
        if "TORCHELASTIC_RUN_ID" not in environment:
            return None
        values = [environment.get(name, "") for name in names]
        return cls(*map(int, values)) if all(value.isdecimal() for value in values) else None

    def refuse(self, *options: str) -> None:
        """Raise what makes it impossible to join."""
        problems = [
            Finding(
                slug="torchrun-option",
                what=f"{option} cannot be had inside torchrun",
                why=f"torchrun has started {self.ranks} processes and waits for them",
                fix=f"phalanx train JOB {option}, without torchrun",
            )
            for option in options
        ]
        if self.node_ranks != self.ranks:
            problems.append(
                Finding(
                    slug="torchrun-nodes",
                    what=f"torchrun has started {self.ranks} ranks, {self.node_ranks} of them here",
                    why="WORLD_SIZE and LOCAL_WORLD_SIZE; ranks that join torchrun share 1 node",
                    fix="start it on each node without torchrun: `phalanx train JOB --nodes N`",
                )
            )
        if problems:
            raise UserError(problems)

    def place(self, job: Job, machine: Machine) -> Job:
        """A job that names no devices takes as many as there are ranks."""
        if job.devices.cpu is not None or job.devices.gpus is not None:
            return job
        from phalanx.planner.verify_plans import devices_for

        devices, _ = devices_for(job, machine, self.ranks)
        return job.model_copy(update={"devices": devices})

    def judge(self, prepared: Prepared) -> Prepared:
        """A plan for another number of ranks is refused; that there are no restarts is said."""
        planned = prepared.plan.devices.ranks
        if planned.value != self.ranks:
            raise UserError(
                Finding(
                    slug="torchrun-ranks",
                    what=f"the plan has {planned.value} ranks, torchrun has started {self.ranks}",
                    why=f"{planned.reason}; WORLD_SIZE={self.ranks}",
                    fix=f"torchrun --nproc-per-node {planned.value}, or `phalanx train` alone, "
                    "which starts its ranks itself",
                )
            )
        note = Finding(
            slug="torchrun-joined",
            what=f"the {self.ranks} processes that torchrun has started are the ranks",
            why="TORCHELASTIC_RUN_ID is set; a rank that dies is not started again from here, and "
            "max_restarts has no effect",
            fix="nothing to do; torchrun --max-restarts 3 starts them again, and the run goes on",
            severity="note",
        )
        return replace(prepared, findings=[*prepared.findings, note])

    def find_run(self, output: Path) -> str | None:
        """The run that this torchrun has begun before it started its processes again."""
        mine = this_process().starter
        for path in sorted(output.glob("*/.lock")) if self.restarts else []:
            holder = read_holder(RunDirectory(path.parent))
            if not path.parent.is_symlink() and holder is not None and holder.starter == mine:
                return str(path.parent)
        return None


class TorchrunLauncher(Launcher):
    """Takes the place of the launcher in the command of rank 0: has one process, its rank."""

    can_restart = False

    def __init__(self, joined: Torchrun) -> None:
        super().__init__()
        self._joined = joined
        self._rank: subprocess.Popen[bytes] | None = None
        self._share: Share | None = None
        self._is_told = False
        self._starter = os.getppid()
        self._is_ended = False

    def start(self, early: Mapping[str, str]) -> None:
        """Nothing is begun before the plan is made: torchrun's other processes wait for it."""

    def request(self, start: StartRanks) -> None:
        if self._rank is not None:
            raise LauncherError("ranks that torchrun has started cannot be started again from here")
        there = _environment()  # of the other ranks, which have begun
        added = {n: v for n, v in start.environment.items() if there.get(n) != v}
        self._share = start.share
        joined = JoinedRun(
            run=start.share.run,
            attempt=start.share.attempt,
            environment=added,
            is_read_early=bool(added.keys() - READ_LATE),
        )
        self._rank = start_rank(start.environment, json.dumps(to_json(joined)))

    def receive(self, timeout_s: float) -> Message | None:
        assert self._rank is not None, "it was started"
        if not self._is_told:
            self._is_told = True
            return RanksStarted([self._rank.pid])
        if os.getppid() != self._starter and not self._is_ended:
            self._is_ended = True
            self._rank.terminate()  # torchrun is gone, and with it the others
        try:
            code = self._rank.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        if code == 0:
            self._wait_for_others()
        return RanksEnded([RankDeath(self._joined.rank, code)] if code else [])

    def send(self, message: Message) -> None:
        is_running = self._rank is not None and self._rank.poll() is None
        if self._rank is not None and is_running and isinstance(message, SendSignal):
            self._rank.send_signal(message.number)

    def kill(self) -> None:
        if self._rank is not None:
            self._rank.kill()

    def close(self) -> None:
        if self._rank is not None and self._rank.poll() is None:
            self._rank.terminate()
            self._rank.wait()

    def _wait_for_others(self) -> None:
        assert self._share is not None, "the rank was asked for"
        events = RunDirectory(self._share.run).events
        deadline = time.monotonic() + _OTHERS_S
        while time.monotonic() < deadline:
            ended = {
                event.writer
                for event in read_events(events)
                if isinstance(event.body, Outcome) and event.attempt == self._share.attempt
            }
            if len(ended - {"supervisor"}) >= self._joined.ranks:
                return
            time.sleep(_POLL_S)


def _environment() -> dict[str, str]:
    """What is known of a rank's environment before there is a plan; the user's own wins."""
    return {**early_variables(), **os.environ}


def start_rank(environment: dict[str, str], record: str | None = None) -> subprocess.Popen[bytes]:
    """A process that becomes the rank which the environment names; rank 0 is told the run."""
    words = ["joined", *([record] if record is not None else [])]
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "phalanx.engine", *words],
        env=environment,
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # signals are the command's to answer
    )


def follow_first_rank() -> int:
    """What the commands of the other ranks do: start a rank, which waits for rank 0's plan."""
    child = start_rank(_environment())
    asked: list[signal.Signals] = []
    forwarded, starter = 0, os.getppid()
    try:
        with hearing_stops(asked):
            while child.poll() is None:
                if os.getppid() != starter and not asked:
                    asked.append(signal.SIGTERM)  # torchrun is gone
                if len(asked) > forwarded:
                    forwarded = len(asked)
                    child.send_signal(signal.SIGTERM if forwarded == 1 else signal.SIGKILL)
                time.sleep(_POLL_S)
    finally:
        if child.poll() is None:
            child.kill()
        child.wait()
    if asked and child.returncode in (0, -signal.SIGTERM):
        return int(ExitCode.STOPPED)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def refuse_inside_torchrun() -> None:
    """`phalanx launch` starts ranks of its own: N x N of them inside torchrun."""
    joined = Torchrun.find()
    if joined is not None:
        raise UserError(
            Finding(
                slug="launch-in-torchrun",
                what=f"`phalanx launch` was started {joined.ranks} times, by torchrun or by itself",
                why=f"TORCHELASTIC_RUN_ID is set, RANK={joined.rank} of WORLD_SIZE={joined.ranks}; "
                "every one of them would start all ranks",
                fix="phalanx launch SCRIPT.py ARGS..., without torchrun",
            )
        )
