"""A rank of a job that torchrun has started: meets the others at torchrun's store, where the first
one says which run it is, and becomes a rank as any other.

`python -m phalanx.engine joined [RECORD]`; RECORD is rank 0's: a `JoinedRun`.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from dataclasses import replace
from datetime import timedelta

from torch._C._distributed_c10d import TCPStore

from phalanx.codec import from_json, to_json
from phalanx.engine.launcher.fork import set_openblas_threads
from phalanx.engine.launcher.rank_process import run_rank
from phalanx.run.launching import JoinedRun
from phalanx.run.parent_death import end_with_parent

_PATIENCE = timedelta(hours=24)  # for rank 0 to look at machine and recipe; torchrun ends the wait


def run_joined(words: list[str]) -> int:
    """Be the rank that the environment names; returns the exit code."""
    end_with_parent()
    meeting = _connect()
    key = f"phalanx/{os.environ['TORCHELASTIC_RESTART_COUNT']}"
    if words:
        kept, port = _open_store()
        assert kept is not None, "it serves for as long as it is held"
        joined = replace(from_json(JoinedRun, json.loads(words[0])), port=port)
        meeting.set(key, json.dumps(to_json(joined)))
    else:
        joined = from_json(JoinedRun, json.loads(meeting.get(key)))
    environment = {
        **os.environ,
        **joined.environment,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(joined.port),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }
    if joined.is_read_early and not words:  # torch has read its variables: start again
        command = [sys.executable, "-u", "-m", "phalanx.engine", str(joined.run)]
        os.execve(sys.executable, command, environment)  # noqa: S606 - a list, no shell
    os.environ.update(environment)
    set_openblas_threads(environment)
    return run_rank(joined.run, joined.attempt)


def _connect() -> TCPStore:
    """The store of torchrun's agent, or rank 0's where there is none."""
    is_agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        int(os.environ["WORLD_SIZE"]),
        is_master=not is_agents and os.environ["RANK"] == "0",
        timeout=_PATIENCE,
        wait_for_workers=False,
    )


def _open_store() -> tuple[TCPStore, int]:
    """A store for the process groups, in rank 0 and on loopback: those of torchrun's agent would
    find addresses of ranks in it that are gone (torch 2.13, new_group after a restart). torch's own
    `init_process_group` opens it once more: several in one process are one server."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    store = TCPStore(
        "127.0.0.1",
        port,
        is_master=True,
        wait_for_workers=False,
        multi_tenant=True,
        master_listen_fd=listener.detach(),
    )
    return store, port
