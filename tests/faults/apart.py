"""Ranks in processes of their own, which a fault may kill: forks of a server that has imported
torch, so that starting one takes a fraction of a second.

A plant is a function named `module:function` that each rank calls before it begins; it patches what
shall fail there. Nothing of it is in the package.
"""

import importlib
import multiprocessing
import os
import signal
import socket
import sys
import time
from pathlib import Path

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    ["phalanx.engine.rank.worker", "torch._dynamo", "torch.distributed.fsdp", "tests.faults.apart"]
)


def run_ranks(run, *, ranks=1, attempt=0, plant=None, timeout_s=90, **facts):
    """Run every rank of a run directory to its end; returns their exit codes, negative after a
    signal. `plant` is called with `facts`. No process outlives this."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    environment = {
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    processes = []
    try:
        for rank in range(ranks):
            own = {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            process = _context.Process(
                target=_be_rank, args=(str(run.path), attempt, own, plant, facts)
            )
            process.start()
            processes.append(process)
        deadline = time.monotonic() + timeout_s
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
        assert all(process.exitcode is not None for process in processes), _logs(run)
        return [process.exitcode for process in processes]
    finally:
        for process in processes:
            if process.exitcode is None:
                process.kill()
                process.join()


def _be_rank(path, attempt, environment, plant, facts):
    os.environ.update(environment)
    rank = os.environ["RANK"]
    log = Path(path) / "logs" / f"rank-{rank}.log"
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    if plant is not None:
        module, _, function = plant.partition(":")
        getattr(importlib.import_module(module), function)(**facts)
    from phalanx.engine.rank.worker import run_worker

    is_good = run_worker(Path(path), attempt=attempt)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if is_good else 1)  # as a rank ends: without waiting for a peer that is gone


def die():
    """End as a rank that is killed: at once, nothing is cleaned up."""
    os.kill(os.getpid(), signal.SIGKILL)


def is_rank(number):
    return os.environ["RANK"] == str(number)


def _logs(run):
    texts = [f"{path.name}:\n{path.read_text()[-3000:]}" for path in run.logs.glob("rank-*.log")]
    return "ranks do not end\n" + "\n".join(texts)
