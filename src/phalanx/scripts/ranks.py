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
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from signal import Signals
from typing import IO, cast

from phalanx.errors import Finding
from phalanx.run.directory import RunDirectory
from phalanx.supervise.rank_group import RankDeath

_ALONE = (sys.executable, "-I", "-S")  # quick, and nothing of the user's environment
_CHUNK = 2**16
_KEPT_LINES = 400  # of each rank, for a traceback
_END_S = 5.0  # SIGTERM to SIGKILL when a rank has died and its peers must go
_SAVE_S = 30.0  # the same after a signal that was passed on: peers may be saving

TakeLine = Callable[[int, str, bool], None]
"""rank, text, whether it will be overwritten (a bar that ends with a carriage return)."""


class ScriptRanks:
    """Starts the ranks, hands on what they print, passes signals on and says how they ended."""

    def __init__(
        self,
        run: RunDirectory,
        argv: list[str],
        environments: list[dict[str, str]],
        attempt: int,
        *,
        first: int = 0,
    ) -> None:
        """`first`: the number of the first rank here; those of other nodes come before it."""
        self._run = run
        self._first = first
        self._argv = argv
        self._environments = environments
        self._attempt = attempt
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._guard: subprocess.Popen[bytes] | None = None
        self._outputs: dict[int, _Output] = {}
        self._selector = selectors.DefaultSelector()
        self._codes: dict[int, int] = {}
        self._deadline: float | None = None
        self._is_asked = False
        self._is_ending = False
        self.deaths: list[RankDeath] = []
        """Ranks that did not end in order, in the order in which they were seen to be gone."""
        self.devices: list[str] = []
        """Where each rank computes: as prepared."""
        self.asked: list[Signals] = []
        """Signals that other nodes were asked to stop with: there is none."""
        self.lost: Finding | None = None
        """A node that is gone: there is none."""

    def start(self) -> list[int]:
        """Start all ranks; returns their process ids. From the thread that stays until the end:
        Linux ends the ranks with it."""
        stub = [*_ALONE, str(Path(__file__).with_name("rank_process.py"))]
        for rank, environment in enumerate(self._environments, self._first):
            child = subprocess.Popen(
                [*stub, str(os.getpid()), *self._argv],
                env=environment,
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
            self._outputs[rank] = _Output(child.stdout, log, self._attempt, child.pid)
            self._selector.register(child.stdout, selectors.EVENT_READ, rank)
        self._guard = subprocess.Popen(
            [*_ALONE, str(Path(__file__).with_name("rank_guard.py")), *map(str, self.pids)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        return self.pids

    @property
    def pids(self) -> list[int]:
        return [child.pid for child in self._children.values()]

    def follow(self, take: TakeLine, timeout_s: float) -> bool:
        """Hand on what was printed meanwhile; False once all ranks are gone."""
        for key, _ in self._selector.select(timeout_s):
            for text, is_update in self._outputs[key.data].read():
                take(key.data, text, is_update)
            if self._outputs[key.data].is_over:
                self._selector.unregister(key.fileobj)
        if not self._selector.get_map():
            time.sleep(timeout_s)
        self._reap()
        if len(self._codes) < len(self._children):
            self._end_peers()
            return True
        for rank, output in self._outputs.items():  # a process of theirs may hold the pipe open
            for text, is_update in output.finish():
                take(rank, text, is_update)
        self._selector.close()
        return False

    def pass_on(self, number: Signals) -> None:
        """Send a signal to every rank that still runs; SIGKILL also takes what they started."""
        self._is_asked = True
        self._send(number)

    def end(self) -> None:
        """End all ranks: one of another node has died."""
        self._is_ending = True

    def last_lines(self, rank: int) -> list[str]:
        return list(self._outputs[rank].lines)

    def close(self) -> None:
        """End what still runs, at once."""
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
                    gone.append(RankDeath(rank, code))
                    # What it had started and left behind goes with it; its session has its number
                    # for as long as one of them is there.
                    with suppress(ProcessLookupError, PermissionError):
                        os.killpg(child.pid, signal.SIGKILL)
        # Seen at once: a signal nobody here sent is the cause, an exit code more likely the effect.
        gone.sort(key=lambda death: (death.exit_code > 0, self._is_echo(death.rank), death.rank))
        self.deaths += gone

    def _is_echo(self, rank: int) -> bool:
        return is_echo(self.last_lines(rank))

    def _end_peers(self) -> None:
        """A group that lacks a rank cannot go on."""
        if not (self.deaths or self._is_ending) and not (self._is_asked and self._codes):
            return
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + (_SAVE_S if self._is_asked else _END_S)
            if not self._is_asked:
                self._send(signal.SIGTERM)
        elif now > self._deadline:
            self._send(signal.SIGKILL)


def is_echo(lines: list[str]) -> bool:
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
