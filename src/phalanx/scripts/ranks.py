"""The ranks of a launched script in one attempt: plain processes, each with its own session and one
pipe for all it prints, which goes to its log and is handed on line by line."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from signal import Signals
from typing import IO, cast

from phalanx.run.directory import RunDirectory
from phalanx.run.event_kinds import Usage
from phalanx.run.heartbeat import Beat
from phalanx.run.launching import RankDeath, Share, Witness
from phalanx.scripts.environment import torchrun_variables
from phalanx.scripts.request import PreparedScript
from phalanx.supervise.place import RankStart

_ALONE = (sys.executable, "-I", "-S")  # quick, and nothing of the user's environment
_CHUNK = 2**16
_KEPT_LINES = 400  # of each rank, for a traceback
_END_S = 5.0  # SIGTERM to SIGKILL when a rank has died and its peers must go
_SAVE_S = 30.0  # the same after a signal that was passed on: peers may be saving

TakeLine = Callable[[int, str, bool], None]
"""rank, text, whether it will be overwritten (a bar that ends with a carriage return)."""


class ScriptRanks:
    """The ranks of a launched script on this machine. They have no heartbeats."""

    def __init__(self, prepared: PreparedScript, share: Share, take: TakeLine) -> None:
        self._prepared = prepared
        self._share = share
        self._take = take
        self._run = RunDirectory(share.run)
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._guard: subprocess.Popen[bytes] | None = None
        self._outputs: dict[int, _Output] = {}
        self._selector = selectors.DefaultSelector()
        self._codes: dict[int, int] = {}
        self._deadline: float | None = None
        self._is_asked = False
        self._is_ending = False
        self._failed: list[RankDeath] = []
        self.is_running = True
        self.error: BaseException | None = None
        self.asked: list[Signals] = []
        self.beats: dict[int, Beat] = {}
        self.witnesses: list[Witness] | None = None
        self.meeting_port: int | None = None

    def start(self) -> None:
        """Start all ranks. From the thread that stays until the end: Linux ends the ranks with
        it."""
        share = self._share
        stub = [*_ALONE, str(Path(__file__).with_name("rank_process.py"))]
        argv = self._prepared.argv_of(share.attempt)
        for rank in range(share.first, share.first + share.ranks):
            child = subprocess.Popen(
                [*stub, str(os.getpid()), *argv],
                env=rank_environment(self._prepared, share, rank),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                start_new_session=True,  # Ctrl-C in a terminal is the command's to answer
            )
            self._children[rank] = child
            assert child.stdout is not None
            os.set_blocking(child.stdout.fileno(), False)
            log = self._run.log_file(rank)
            self._outputs[rank] = _Output(child.stdout, log, share.attempt, child.pid)
            self._selector.register(child.stdout, selectors.EVENT_READ, rank)
        self._guard = subprocess.Popen(
            [*_ALONE, str(Path(__file__).with_name("rank_guard.py")), *map(str, self.pids)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self.meeting_port = share.port

    @property
    def starts(self) -> list[RankStart] | None:
        if self._guard is None:
            return None
        return [*map(RankStart, self.pids, self._prepared.devices)]

    @property
    def deaths(self) -> list[RankDeath]:
        """Ranks in the order in which they were seen to be gone, with what they printed last."""
        return [replace(death, lines=self._last_lines(death.rank)) for death in self._failed]

    def cause_key(self, death: RankDeath) -> tuple[bool, ...]:
        return death.was_ended, _is_echo(death.lines)

    @property
    def pids(self) -> list[int]:
        return [child.pid for child in self._children.values()]

    def wait(self, timeout_s: float) -> None:
        """Hand on what is printed meanwhile."""
        if not self.is_running:
            return
        for key, _ in self._selector.select(timeout_s):
            for text, is_update in self._outputs[key.data].read():
                self._take(key.data, text, is_update)
            if self._outputs[key.data].is_over:
                self._selector.unregister(key.fileobj)
        if not self._selector.get_map():
            time.sleep(timeout_s)
        self._reap()
        if len(self._codes) < len(self._children):
            self._end_peers()
            return
        self.is_running = False
        for rank, output in self._outputs.items():  # a process of theirs may hold the pipe open
            for text, is_update in output.finish():
                self._take(rank, text, is_update)
        self._selector.close()

    def signal(self, number: Signals) -> bool:
        self._is_asked = True
        self._send(number)
        return True

    def end(self) -> None:
        self._is_ending = True

    def ask_where(self) -> None:
        """They cannot say."""

    def take_usage(self) -> list[Usage]:
        return []

    def tell_peers_over(self) -> None:
        """They hold what they meet at themselves."""

    def close(self) -> None:
        self.kill()

    def kill(self) -> None:
        self._send(signal.SIGKILL)
        for child in self._children.values():
            child.wait()
        if self._guard is not None:
            self._guard.kill()  # before its pipe ends
            self._guard.communicate()
        for output in self._outputs.values():
            output.close()

    def _send(self, number: Signals) -> None:
        """Only to those not yet waited for: their numbers are nobody else's."""
        for rank, child in self._children.items():
            if rank not in self._codes:
                with suppress(ProcessLookupError):
                    if number == signal.SIGKILL:
                        os.killpg(child.pid, number)
                    else:
                        child.send_signal(number)

    def _reap(self) -> None:
        gone = []
        for rank, child in self._children.items():
            if rank not in self._codes and (code := child.poll()) is not None:
                self._codes[rank] = code
                if code:
                    gone.append(RankDeath(rank, code, lines=self._last_lines(rank)))
                    # What it had started and left behind goes with it; its session has its number
                    # for as long as one of them is there.
                    with suppress(ProcessLookupError, PermissionError):
                        os.killpg(child.pid, signal.SIGKILL)
        # Seen at once: a signal nobody here sent is the cause, an exit code more likely the effect.
        gone.sort(key=lambda death: (death.exit_code > 0, _is_echo(death.lines), death.rank))
        self._failed += gone

    def _last_lines(self, rank: int) -> tuple[str, ...]:
        return tuple(self._outputs[rank].lines)

    def _end_peers(self) -> None:
        """A group that lacks a rank cannot go on."""
        if not (self._failed or self._is_ending) and not (self._is_asked and self._codes):
            return
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + (_SAVE_S if self._is_asked else _END_S)
            if not self._is_asked:
                self._send(signal.SIGTERM)
        elif now > self._deadline:
            self._send(signal.SIGKILL)


def rank_environment(prepared: PreparedScript, share: Share, rank: int) -> dict[str, str]:
    """The environment of one rank of a script."""
    log = RunDirectory(share.run).nccl_log(rank)
    debug = {"NCCL_DEBUG_FILE": str(log)} if prepared.request.debug_comm else {}
    limit = prepared.request.max_restarts
    variables = torchrun_variables(share, rank - share.first, max_restarts=limit)
    return {**debug, **os.environ, **prepared.variables, **variables}


def _is_echo(lines: Sequence[str]) -> bool:
    """Whether a rank that printed these last only said that another one was gone."""
    from phalanx.diagnose.matching import says_echo  # reading the table takes a while

    return says_echo(lines[-30:])


class _Output:
    """What one rank prints."""

    def __init__(self, pipe: IO[bytes], log: Path, attempt: int, pid: int) -> None:
        self._pipe = pipe
        self._log = log.open("ab", buffering=0)
        self._log.write(f"--- attempt {attempt}, pid {pid}\n".encode())
        self._rest = b""
        self.is_over = False
        self.lines: deque[str] = deque(maxlen=_KEPT_LINES)

    def read(self) -> Iterator[tuple[str, bool]]:
        """What is there now, by line or by state of a bar."""
        try:
            chunk = cast(bytes | None, self._pipe.read(_CHUNK))  # None: nothing there yet
        except OSError:
            chunk = b""
        if chunk is None:
            return
        self.is_over = not chunk
        self._log.write(chunk)
        yield from self._split(chunk)

    def _split(self, chunk: bytes) -> Iterator[tuple[str, bool]]:
        pieces = (self._rest + chunk).replace(b"\r\n", b"\n").splitlines(keepends=True)
        self._rest = b""
        # A bar is printed with its carriage return before it: the last state waits for the next.
        if pieces and not pieces[-1].endswith((b"\n", b"\r")) and len(pieces[-1]) < _CHUNK:
            self._rest = pieces.pop()
        for piece in pieces:
            text = piece.rstrip(b"\r\n").decode(errors="replace")
            is_update = piece.endswith(b"\r")
            if not is_update:
                self.lines.append(text)
            if text.strip() or not is_update:
                yield text, is_update

    def finish(self) -> Iterator[tuple[str, bool]]:
        """The end of it, also a last line without an end."""
        while not self.is_over:
            before = self._pipe.read(_CHUNK) if not self._pipe.closed else b""
            if not before:
                break
            self._log.write(before)
            yield from self._split(before)
        if self._rest:
            yield from self._split(b"\n")
        self.close()

    def close(self) -> None:
        self._pipe.close()
        self._log.close()
