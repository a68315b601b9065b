"""torch's elastic agent, with ranks forked from this process: one agent per attempt, and no
restarts of its own.

Of torch's own agent for local ranks only the base is used. It can fork, but then it reports one
failure of several, waits forever for a rank that left with exit code 0 before its function
returned, and hands results over in pickles (torch 2.13, MultiprocessContext)."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, cast

from torch.distributed.elastic.agent.server.api import (
    RunResult,
    SimpleElasticAgent,
    Worker,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from phalanx.engine.launcher.fork import ForkedRank
from phalanx.engine.launcher.rendezvous import FreshRendezvous
from phalanx.engine.process.stacks import collect_stacks
from phalanx.run.channel import Channel
from phalanx.run.directory import RunDirectory
from phalanx.run.heartbeat import Board, Phase
from phalanx.run.launching import (
    AskStacks,
    Beats,
    PeersOver,
    RankDeath,
    RanksStarted,
    SendSignal,
    Stacks,
    StartRanks,
    StoreOpened,
)

_POLL_S = 0.05
_BEATS_S = 0.5
_ALONE_S, _ALONE_SAVING_S = 60.0, 600.0  # silence of ranks whose command is gone
_SHUTDOWN_S = 5.0  # SIGTERM to SIGKILL when a rank has died and its peers must go


class RankAgent(SimpleElasticAgent):
    """Starts the ranks of one attempt, passes signals on to them, and says how they ended."""

    def __init__(self, start: StartRanks, channel: Channel) -> None:
        logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
        share = start.share
        spec = WorkerSpec(
            role="phalanx",
            local_world_size=share.ranks,
            entrypoint=sys.executable,
            rdzv_handler=FreshRendezvous(share),
            max_restarts=0,
            monitor_interval=0.001,  # it waits for the channel instead
        )
        super().__init__(spec, exit_barrier_timeout=10)
        self._share = share
        self._environment = start.environment
        self._channel = channel
        self._children: dict[int, ForkedRank | subprocess.Popen[bytes]] = {}
        self._codes: dict[int, int] = {}
        self._ended: set[int] = set()
        self._is_left_alone = False
        self._are_peers_over = share.nodes == 1
        self._board = Board(range(share.first, share.first + share.ranks))
        self._told_beats = time.monotonic()

    def watch(self) -> list[RankDeath]:
        """Run the ranks to their end; return those that failed."""
        try:
            with self._noticing_sigterm():
                result = self.run()
        finally:
            self._board.close()
        return [
            RankDeath(rank, failure.exitcode, rank in self._ended)
            for rank, failure in result.failures.items()
        ]

    def _assign_worker_ranks(
        self, store: Any, group_rank: int, group_world_size: int, spec: WorkerSpec
    ) -> list[Worker]:
        """As many ranks on every node, so nobody needs to ask: torch's agents would wait for each
        other in a call that cannot be interrupted."""
        local, world = spec.local_world_size, group_world_size * spec.local_world_size
        numbers = [(rank, group_rank * local + rank) for rank in range(local)]
        return [
            Worker(
                local_rank=rank,
                global_rank=number,
                role_rank=number,
                world_size=world,
                role_world_size=world,
            )
            for rank, number in numbers
        ]

    def _exit_barrier(self) -> None:
        """The store stays until the ranks of all nodes are gone; the command says when."""
        while self._share.node == 0 and not (self._are_peers_over or self._is_left_alone):
            self._listen(_POLL_S)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        if self._share.nodes > 1 and self._share.node == 0:
            # Annotated as None in torch; set by the rendezvous.
            self._channel.send(StoreOpened(cast(int, worker_group.master_port)))
        for index, worker in enumerate(worker_group.workers):
            # A user's own setting wins over torch's for NCCL, and the agent's over all others.
            environment = {
                "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
                **self._environment,
                **_variables(worker, worker_group),
            }
            self._children[worker.global_rank] = self._start(environment, index)
        if self._is_left_alone:  # while they were started
            self._signal(signal.SIGTERM)
        self._channel.send(RanksStarted([child.pid for child in self._children.values()]))
        return {worker.local_rank: worker.global_rank for worker in worker_group.workers}

    def _start(
        self, environment: dict[str, str], index: int
    ) -> ForkedRank | subprocess.Popen[bytes]:
        share, board = self._share, self._board
        if can_fork():
            return ForkedRank(share.run, share.attempt, environment, board.cells(index))
        return subprocess.Popen(
            [sys.executable, "-u", "-m", "phalanx.engine", str(share.run)],
            env={**environment, **board.environment(index)},
            pass_fds=[board.descriptor],
            start_new_session=True,
        )

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        self._listen(_POLL_S)
        self._reap()
        self._look_at_beats()
        if any(self._codes.values()):
            self._end()
            return RunResult(WorkerState.FAILED, failures=self._failures(worker_group))
        if len(self._codes) == len(self._children):
            return RunResult(WorkerState.SUCCEEDED, return_values=dict.fromkeys(self._codes))
        return RunResult(WorkerState.HEALTHY)

    def _stop_workers(self, *_: Any, **__: Any) -> None:
        self._end()

    def _shutdown(self, *_: Any, **__: Any) -> None:
        self._end()

    def _failures(self, worker_group: WorkerGroup) -> dict[int, ProcessFailure]:
        return {
            worker.global_rank: ProcessFailure(
                local_rank=worker.local_rank,
                pid=self._children[worker.global_rank].pid,
                exitcode=self._codes[worker.global_rank],
                error_file="",
            )
            for worker in worker_group.workers
            if self._codes.get(worker.global_rank)
        }

    def _look_at_beats(self) -> None:
        """Tell the command where the ranks are, now and then, and never wait for it: what it has
        not read is soon old. When it is gone, nobody judges ranks that hang: they are ended."""
        running = [beat for beat in self._board.read() if beat.rank not in self._codes]
        if self._is_left_alone:
            is_saving = any(beat.phase is Phase.SAVE for beat in running)
            limit_s = _ALONE_SAVING_S if is_saving else _ALONE_S
            if running and all(beat.silent_s > limit_s for beat in running):
                self._signal(signal.SIGKILL)
            return
        if time.monotonic() - self._told_beats < _BEATS_S:
            return
        self._told_beats = time.monotonic()
        with suppress(EOFError):  # it is gone, which is noticed where it is listened to
            if self._channel.can_send:
                self._channel.send(Beats(running))

    def _tell_stacks(self) -> None:
        pids = {rank: c.pid for rank, c in self._children.items() if rank not in self._codes}
        with suppress(EOFError):
            self._channel.send(Stacks(collect_stacks(RunDirectory(self._share.run), pids)))

    def _running(self) -> list[ForkedRank | subprocess.Popen[bytes]]:
        return [child for rank, child in self._children.items() if rank not in self._codes]

    def _reap(self) -> None:
        for rank, child in self._children.items():
            if rank not in self._codes and (code := child.poll()) is not None:
                self._codes[rank] = code

    def _listen(self, timeout_s: float) -> None:
        """Pass on what the command sends. A command that is gone wants its ranks to save and end;
        they can, while their store is here."""
        try:
            if self._is_left_alone:
                raise EOFError
            message = self._channel.receive(timeout_s)
        except EOFError:
            if self._is_left_alone:
                time.sleep(timeout_s)
            else:
                self._leave_alone()
            return
        match message:
            case PeersOver():
                self._are_peers_over = True
            case AskStacks():
                self._tell_stacks()
            case SendSignal(number):
                self._are_peers_over = self._are_peers_over or number == signal.SIGKILL
                self._signal(number)

    def _leave_alone(self) -> None:
        self._is_left_alone = True
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        """Only to those not yet waited for: their numbers are nobody else's."""
        for child in self._running():
            with suppress(ProcessLookupError):
                if number == signal.SIGKILL:
                    with suppress(ProcessLookupError):  # it has not got its own session yet
                        os.killpg(child.pid, number)
                os.kill(child.pid, number)

    def _end(self) -> None:
        """End what still runs; a second Ctrl-C is heard meanwhile. Who dies of another signal than
        was sent here died by itself: a killed process lets go of its connections first, so its
        peers may be gone before it is."""
        self._reap()
        asked = self._children.keys() - self._codes.keys()
        if not asked:
            return
        self._signal(signal.SIGTERM)
        deadline = time.monotonic() + _SHUTDOWN_S
        while self._running():
            self._listen(_POLL_S)
            if time.monotonic() > deadline:
                self._ended |= self._children.keys() - self._codes.keys()
                self._signal(signal.SIGKILL)
            self._reap()
        self._ended |= {rank for rank in asked if self._codes[rank] == -signal.SIGTERM}

    @contextmanager
    def _noticing_sigterm(self) -> Iterator[None]:
        """SIGTERM is what Linux sends when the command has died."""

        def handle(number: int, frame: FrameType | None) -> None:
            self._leave_alone()

        before = signal.signal(signal.SIGTERM, handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)


def can_fork() -> bool:
    """Whether ranks may be forks of this process. Elsewhere they are new processes: on macOS
    Accelerate and Metal do not survive a fork, and CUDA nowhere, if an import has begun it."""
    return sys.platform == "linux" and not any(map(_is_gpu, Path("/proc/self/fd").iterdir()))


def _is_gpu(descriptor: Path) -> bool:
    try:
        return str(descriptor.readlink()).startswith(("/dev/nvidia", "/dev/dxg", "/dev/kfd"))
    except OSError:  # the one that lists the others
        return False


def _variables(worker: Worker, group: WorkerGroup) -> dict[str, str]:
    """What torch.distributed and recipes expect of whoever started them."""
    return {
        "RANK": str(worker.global_rank),
        "LOCAL_RANK": str(worker.local_rank),
        "GROUP_RANK": str(group.group_rank),
        "ROLE_RANK": str(worker.role_rank),
        "ROLE_NAME": group.spec.role,
        "WORLD_SIZE": str(worker.world_size),
        "LOCAL_WORLD_SIZE": str(group.spec.local_world_size),
        "GROUP_WORLD_SIZE": str(group.group_world_size),
        "ROLE_WORLD_SIZE": str(worker.role_world_size),
        "MASTER_ADDR": str(group.master_addr),
        "MASTER_PORT": str(group.master_port),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": group.spec.rdzv_handler.get_run_id(),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
