"""Holds the launcher: the child process that imports torch once and forks every rank from it.

The command never imports torch itself, and is never forked: it may be a notebook in which CUDA is
in use. The launcher lives as long as one `train`, `verify` or `bench`, so that ranks have the
environment, folder and interpreter settings of whoever called it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

from phalanx.prepare.rank_environment import waiting_threads
from phalanx.run.channel import Channel, Message
from phalanx.run.launching import Answered, Ask, RanksEnded, RanksFailed, StartRanks

# Read after the ranks were forked, or set in them by hand (engine/launcher/fork.py), so they may
# differ from what the launcher was started with. Not among them: PYTORCH_ALLOC_CONF, which torch
# reads when it is loaded.
READ_LATE = frozenset(
    {
        "OMP_NUM_THREADS",
        "GLOO_SOCKET_IFNAME",
        "NCCL_SOCKET_IFNAME",
        "NCCL_IB_DISABLE",
        "TORCHINDUCTOR_CACHE_DIR",
        "TRITON_CACHE_DIR",
        "CUBLAS_WORKSPACE_CONFIG",
        "ONEDNN_MAX_CPU_ISA",
        "PHALANX_ATTEMPT",
    }
)
LOOK_S = 0.2
"""Between two looks at what a question's answer is waiting for."""
_LINES_TOLD = 3
_END_S = 10.0


class LauncherError(Exception):
    """The launcher could not start, or ended on its own."""


class Launcher:
    """Starts its process when asked to, or with the first request. PR_SET_PDEATHSIG is tied to the
    thread that starts it: that thread must be there until `close`."""

    can_restart = True
    """Whether ranks can be asked for again."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._said: IO[bytes] | None = None
        self._environment: dict[str, str] = {}
        self._has_ranks = False

    def __enter__(self) -> Launcher:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def start(self, early: Mapping[str, str]) -> None:
        """Begin to import torch. `early` is what ranks will have in their environment besides the
        command's, as far as it is known; the command's own settings win. Once begun, it goes on."""
        if self._process is not None:
            return
        environment = {**waiting_threads(), **early, **os.environ}
        # One thread while it imports: nothing else runs when it forks. Ranks set their own number.
        environment.setdefault("OMP_NUM_THREADS", "1")
        ours, theirs = socket.socketpair()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `_forget`
        with theirs:
            # -u: ranks inherit standard output as it is here.
            command = [sys.executable, "-u", "-m", "phalanx.engine", "launch"]
            try:
                self._process = subprocess.Popen(
                    [*command, str(theirs.fileno())],
                    env=environment,
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=self._said,
                    stderr=self._said,
                    start_new_session=True,  # Ctrl-C in a terminal is the command's to answer
                )
            except OSError as error:
                ours.close()
                raise LauncherError(f"no process could be started: {error}") from error
        self._channel = Channel(ours)
        self._environment = environment

    def request(self, start: StartRanks) -> None:
        """Have ranks started."""
        if self._process is not None and self._must_read_anew(start.environment):
            self.close()
        if self._process is None:
            self.start(start.environment)
        self._has_ranks = True
        self.send(start)

    def ask(
        self,
        words: Sequence[str],
        files: tuple[Path, Path, Path],
        environment: dict[str, str],
        is_patient: Callable[[], bool],
    ) -> int | None:
        """Have a fork that has torch already run `python -m WORDS FILES`: the request, the
        answer, what is printed meanwhile. Return the exit code; None where it cannot be asked.
        TimeoutError once `is_patient`, asked again and again, says no."""
        if self._process is None or self._has_ranks or sys.platform != "linux":
            return None
        try:
            self.send(Ask([*words], files, environment))
            while is_patient():
                if isinstance(answer := self.receive(LOOK_S), Answered):
                    return answer.exit_code
        except LauncherError:  # said when ranks are asked for
            return None
        self.close()
        raise TimeoutError

    def send(self, message: Message) -> None:
        assert self._channel is not None, "it was started"
        try:
            self._channel.send(message)
        except EOFError:
            raise self._died() from None

    def receive(self, timeout_s: float) -> Message | None:
        """Return what it has to say, if anything within this time."""
        assert self._channel is not None, "it was started"
        try:
            answer = self._channel.receive(timeout_s)
        except (EOFError, ValueError):
            raise self._died() from None
        if isinstance(answer, RanksEnded | RanksFailed):
            self._has_ranks = False
        return answer

    def close(self) -> None:
        """End it. Ranks that still run are told to stop: it waits for them, alone."""
        if self._process is None:
            return
        if not self._has_ranks:
            self._process.kill()
        self._forget()

    def kill(self) -> None:
        """End it although it was asked for ranks; those that are there get SIGTERM."""
        if self._process is not None:
            self._process.kill()

    def _must_read_anew(self, environment: dict[str, str]) -> bool:
        before = self._environment
        names = {*before, *environment} - READ_LATE
        return any(before.get(name) != environment.get(name) for name in names)

    def _died(self) -> LauncherError:
        assert self._process is not None
        assert self._said is not None
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:  # it has closed its end and does not go
            self._process.kill()
            code = self._process.wait()
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()[-_LINES_TOLD:]
        self._has_ranks = False
        self._forget()
        return LauncherError(" | ".join([f"the launcher ended with exit code {code}", *lines]))

    def _forget(self) -> None:
        assert self._process is not None
        assert self._channel is not None
        assert self._said is not None
        self._channel.close()
        if not self._has_ranks:
            self._process.wait()
        self._said.close()
        self._process, self._channel, self._said, self._has_ranks = None, None, None, False
