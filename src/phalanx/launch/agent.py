"""Starts ranks with torch's elastic agent: one agent per attempt, no restarts of its own.

The only module outside the engine that imports torch, and only when ranks are started. It knows
nothing of training: it starts `python -m phalanx.engine RUN_DIR` N times and says how they ended.
"""

from __future__ import annotations

import inspect
import logging
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SHUTDOWN_S = 5  # SIGTERM to SIGKILL when a rank has died and its peers must go


@dataclass(frozen=True)
class RankDeath:
    """A rank that did not end in order."""

    rank: int
    exit_code: int
    """Negative: killed by that signal."""


class RankGroup:
    """The ranks of one attempt, watched by an elastic agent in a thread of its own."""

    def __init__(self, run_path: Path, *, ranks: int, attempt: int, env: dict[str, str]) -> None:
        # The agent wants a folder of its own and never removes it; ranks write their own logs.
        self._scratch = tempfile.TemporaryDirectory(prefix="phalanx-agent-")
        self._agent = _make_agent(run_path, ranks=ranks, scratch=self._scratch.name)
        self._env = {**env, "PHALANX_ATTEMPT": str(attempt)}
        self.deaths: list[RankDeath] = []
        self.error: BaseException | None = None
        # In a thread the agent installs no signal handlers: the supervisor decides what they mean.
        self._thread = threading.Thread(target=self._run, name="elastic-agent", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def wait(self, timeout_s: float) -> None:
        """Wait for the end, at most this long."""
        self._thread.join(timeout_s)

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal to every rank; SIGKILL also takes their loader processes. False when there
        are none yet."""
        context = getattr(self._agent, "_pcontext", None)
        pids = list(context.pids().values()) if context is not None else []
        for pid in pids:
            with suppress(ProcessLookupError):
                if number == signal.SIGKILL:
                    os.killpg(pid, number)  # the agent gives each rank a session of its own
                else:
                    os.kill(pid, number)
        return bool(pids)

    def _run(self) -> None:
        try:
            with _environment(self._env):
                result = self._agent.run()
        except BaseException as error:  # handed to the supervisor's thread
            self.error = error
            return
        finally:
            self._scratch.cleanup()
        self.deaths = sorted(
            (RankDeath(rank, failure.exitcode) for rank, failure in result.failures.items()),
            key=_cause_first,
        )


def _cause_first(death: RankDeath) -> tuple[bool, bool, int]:
    """A killed rank is the cause; peers that failed, or that the agent ended, are the effect."""
    return death.exit_code > 0, death.exit_code == -signal.SIGTERM, death.rank


def import_torch() -> None:
    """Import what `RankGroup` needs ahead of time; with a broken torch the machine checks speak."""
    with suppress(Exception):
        from torch.distributed.elastic.agent.server import local_elastic_agent  # noqa: F401


@contextmanager
def _environment(extra: dict[str, str]) -> Iterator[None]:
    """Ranks inherit this process's environment; it is put back for whoever called `train`."""
    before = {name: os.environ.get(name) for name in extra}
    os.environ.update(extra)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _make_agent(run_path: Path, *, ranks: int, scratch: str) -> Any:
    from torch.distributed.elastic.agent.server.api import WorkerSpec
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    spec = WorkerSpec(
        role="phalanx",
        local_world_size=ranks,
        entrypoint=sys.executable,
        args=("-u", "-m", "phalanx.engine", str(run_path)),
        rdzv_handler=_loopback_rendezvous(run_path.name),
        max_restarts=0,
        monitor_interval=0.1,
    )
    settings: dict[str, Any] = {
        "logs_specs": DefaultLogsSpecs(log_dir=scratch),
        "exit_barrier_timeout": 10,
    }
    # torch 2.13 takes it as an argument, 2.11 has a fixed 30 s.
    if "shutdown_timeout" in inspect.signature(LocalElasticAgent.__init__).parameters:
        settings["shutdown_timeout"] = _SHUTDOWN_S
    return LocalElasticAgent(spec, **settings)


def _loopback_rendezvous(run_id: str) -> Any:
    """A rendezvous of one node whose store listens on loopback alone, fresh for every attempt.

    torch's own c10d store listens on every interface and is reused after a restart with stale
    addresses in it (torch 2.13)."""
    from torch._C._distributed_c10d import TCPStore
    from torch.distributed.elastic.rendezvous.api import (
        RendezvousHandler,
        RendezvousInfo,
        RendezvousStoreInfo,
    )

    class LoopbackRendezvous(RendezvousHandler):
        def get_backend(self) -> str:
            return "phalanx-loopback"

        @property
        def use_agent_store(self) -> bool:
            return True

        def next_rendezvous(self) -> RendezvousInfo:
            listener = socket.create_server(("127.0.0.1", 0))
            port = listener.getsockname()[1]
            store = TCPStore(
                "127.0.0.1",
                port,
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=listener.detach(),
            )
            return RendezvousInfo(store, 0, 1, RendezvousStoreInfo("127.0.0.1", port))

        def is_closed(self) -> bool:
            return False

        def set_closed(self) -> None:
            return

        def num_nodes_waiting(self) -> int:
            return 0

        def get_run_id(self) -> str:
            return run_id

        def shutdown(self) -> bool:
            return True

    return LoopbackRendezvous()
