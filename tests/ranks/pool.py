"""Gloo ranks that stay up for the whole test session: starting them costs seconds, joining a
process group costs milliseconds.

A test names a function as `module:function`; each rank calls it with RANK, WORLD_SIZE and a fresh
rendezvous in the environment. The pool returns every rank's value, or raises with every rank's
traceback; a rank that does not answer in time is killed with its stacks dumped.
"""

import faulthandler
import importlib
import os
import signal
import socket
import time
import traceback

from tests.warm import take_environment, warm_processes

_SIZE = 4


def _serve(connection, environment):
    take_environment(environment)
    faulthandler.register(signal.SIGUSR2)
    import torch.distributed as dist

    connection.send("ready")
    while (request := connection.recv()) is not None:
        name, arguments, environment = request
        before = dict(os.environ)
        os.environ.update(environment)
        try:
            module, _, function = name.partition(":")
            answer = (True, getattr(importlib.import_module(module), function)(**arguments))
        except BaseException:
            answer = (False, traceback.format_exc())
        if dist.is_initialized():  # a rank that failed exits and leaves its group as it is
            dist.destroy_process_group()
        os.environ.clear()
        os.environ.update(before)
        connection.send(answer)


class RankPool:
    def __init__(self, size=_SIZE):
        self._size = size
        self._members = []
        self._start()

    def _start(self):
        context = warm_processes()
        self._members = []
        for _ in range(self._size):
            ours, theirs = context.Pipe()
            # Not daemonic: ranks start loader processes of their own.
            process = context.Process(target=_serve, args=(theirs, dict(os.environ)), daemon=False)
            process.start()
            self._members.append((process, ours))
        for _, connection in self._members:
            assert connection.poll(120), "a rank of the pool did not start"
            connection.recv()

    def run(self, name, *, ranks, timeout_s=60, env=None, **arguments):
        """Call a function on some ranks; returns their values in rank order."""
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        for rank, (_, connection) in enumerate(self._members[:ranks]):
            environment = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "GLOO_SOCKET_IFNAME": "lo",
                **(env or {}),
            }
            connection.send((name, arguments, environment))
        deadline = time.monotonic() + timeout_s
        answers = []
        for rank, (process, connection) in enumerate(self._members[:ranks]):
            if not connection.poll(max(0.0, deadline - time.monotonic())):
                os.kill(process.pid, signal.SIGUSR2)
                time.sleep(0.5)
                self.close(kill=True)
                self._start()  # the next test gets ranks that answer
                raise TimeoutError(f"rank {rank} did not answer within {timeout_s} s")
            answers.append(connection.recv())
        failures = [f"rank {r}:\n{value}" for r, (ok, value) in enumerate(answers) if not ok]
        assert not failures, "\n".join(failures)
        return [value for _, value in answers]

    def close(self, *, kill=False):
        for process, connection in self._members:
            if kill:
                process.kill()
            else:
                connection.send(None)
        for process, _ in self._members:
            process.join(10)
