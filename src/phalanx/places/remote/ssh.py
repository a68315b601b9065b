"""One connection to one place, through the user's own OpenSSH: commands, questions, streams.

ssh hands one line to the login shell over there. `far_line` is the only function that makes one.
What is asked travels on stdin instead: a program for its Python and the request as JSON.
"""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from phalanx.codec import from_json
from phalanx.errors import ExitCode, Finding, UserError
from phalanx.places.remote import far_side
from phalanx.places.remote.first_look import Found, look_script, no_python, parse_look
from phalanx.places.remote.places import Place
from phalanx.places.remote.program import program_for
from phalanx.places.remote.refusals import refusal

T = TypeVar("T")

CONNECT_S = 10
"""How long one try to reach the machine may take."""
BEAT_S = 5.0
_SILENT_S = 30.0  # six beats: the line is taken for dropped
_ANSWER_S = 120.0
_PERSIST_S = 60  # after a command that was killed its connection ends by itself
# A socket's path has at most 104 bytes (macOS), and ssh adds 17 to it while it makes one.
_MAX_FOLDER = 104 - 17 - len("/ssh") - 1


class LineDroppedError(Exception):
    """The connection ended in the middle; another one may come through."""


@dataclass(frozen=True)
class Answer:
    """What a command over there said."""

    code: int
    out: str
    err: str


def far_line(words: Sequence[str]) -> str:
    """The one line that the login shell over there reads: every word quoted."""
    return " ".join(shlex.quote(word) for word in words)


class Connection:
    """Commands share one connection, which ends with this."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._folder: Path | None = None
        self._found: Found | None = None

    def __enter__(self) -> Connection:
        if shutil.which("ssh") is None:
            raise UserError(
                Finding(
                    slug="ssh-missing",
                    what="there is no `ssh` on this machine",
                    why="`phalanx remote` calls OpenSSH, so that ~/.ssh/config and keys hold",
                    fix="apt install openssh-client",
                ),
                exit_code=ExitCode.LAUNCH,
            )
        self._folder = Path(tempfile.mkdtemp(prefix="phalanx-", dir=_runtime_folder()))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.hang_up()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def hang_up(self) -> None:
        """End the shared connection; the next command makes a new one."""
        if self._folder is None or not (self._folder / "ssh").exists():
            return
        with suppress(OSError, subprocess.SubprocessError):
            argv = [*self.ssh_words(), "-O", "exit", "--", self.place.host]
            subprocess.run(argv, capture_output=True, timeout=CONNECT_S, check=False)
        (self._folder / "ssh").unlink(missing_ok=True)

    def ssh_words(self) -> list[str]:
        """ssh with its options; also for rsync, which cuts them at spaces: none holds any."""
        assert self._folder is not None, "the connection is not open"
        settings = {
            "BatchMode": "yes",  # nobody is there to answer a question
            "ConnectTimeout": CONNECT_S,
            "ServerAliveInterval": 10,
            "ServerAliveCountMax": 3,
            "ControlMaster": "auto",
            "ControlPath": self._folder / "ssh",
            "ControlPersist": _PERSIST_S,
            "LogLevel": "ERROR",
            "RemoteCommand": "none",
            "RequestTTY": "no",
        }
        words = ["ssh", *(f"-o{name}={value}" for name, value in settings.items())]
        words += ["-l", self.place.user] if self.place.user else []
        words += ["-p", str(self.place.port)] if self.place.port else []
        assert not any(c.isspace() or c in "'\"" for word in words for c in word), words
        return words

    def run(self, words: Sequence[str], text: str) -> Answer:
        """Run a command over there with this on its stdin."""
        try:
            done = subprocess.run(
                [*self.ssh_words(), "--", self.place.host, far_line(words)],
                input=text,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=_ANSWER_S,
                check=False,
                start_new_session=True,  # Ctrl-C is ours to handle, not ssh's
            )
        except subprocess.TimeoutExpired:
            raise LineDroppedError(f"no answer within {_ANSWER_S:.0f} s") from None
        if done.returncode == 255:
            self._judge(done.stderr)
        return Answer(done.returncode, done.stdout, done.stderr)

    def _judge(self, said: str) -> None:
        """ssh itself has failed: a refusal is the user's to mend, anything else a dropped line."""
        finding = refusal(self.place, said)
        if finding is not None:
            raise UserError(finding, exit_code=ExitCode.LAUNCH)
        raise LineDroppedError(said.strip() or "the connection ended")

    def find(self) -> Found:
        """The first look: rsync and every Python. Needs a shell and nothing else."""
        if self._found is None:
            answer = _twice(lambda: self.run(["sh", "-s"], look_script(self.place)))
            self._found = parse_look(answer.out)
        return self._found

    def _python(self) -> str:
        python = self.find().python
        if python is None:
            raise UserError(no_python(self.place, self.find()), exit_code=ExitCode.MACHINE)
        return python

    def ask(self, kind: type[T], operation: str, **request: Any) -> T:
        """One answer of the far side. Asked again when the line drops: every question may be."""
        program = program_for(operation, request)
        python = self._python()
        answer = _twice(lambda: self.run([python, "-I", "-"], program))
        for line in answer.out.splitlines():
            if line.startswith(far_side.MARK):
                record = json.loads(line.removeprefix(far_side.MARK))
                if "error" in record:
                    raise UserError(_failed(self.place, operation, record["error"]))
                try:
                    return from_json(kind, record)
                except ValueError as error:
                    raise UserError(_failed(self.place, operation, str(error))) from error
        raise UserError(_failed(self.place, operation, answer.err.strip()[-500:]))

    def stream(self, operation: str, **request: Any) -> Iterator[dict[str, Any]]:
        """Records of the far side as they come, up to its last, which has `end`. A line that drops
        or is silent for too long is a LineDroppedError."""
        argv = [*self.ssh_words(), "--", self.place.host, far_line([self._python(), "-I", "-"])]
        with (
            tempfile.TemporaryFile() as errors,
            subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            ) as child,
        ):
            try:
                yield from _records(child, program_for(operation, request))
            except LineDroppedError:
                child.kill()
                child.wait()
                errors.seek(0)
                said = errors.read().decode(errors="replace")
                if child.returncode == 255:
                    self._judge(said)
                raise
            finally:
                child.kill()


def _records(child: subprocess.Popen[bytes], program: str) -> Iterator[dict[str, Any]]:
    assert child.stdin is not None
    assert child.stdout is not None
    with suppress(BrokenPipeError):
        child.stdin.write(program.encode())
        child.stdin.close()
    unread = b""
    while True:
        ready, _, _ = select.select([child.stdout], [], [], _SILENT_S)
        chunk = os.read(child.stdout.fileno(), 1 << 16) if ready else b""
        if not chunk:
            with suppress(subprocess.TimeoutExpired):
                child.wait(5)  # its exit code says more
            raise LineDroppedError("the connection ended" if ready else "nothing comes any more")
        *lines, unread = (unread + chunk).split(b"\n")
        for line in lines:
            if line.startswith(far_side.MARK.encode()):
                record: dict[str, Any] = json.loads(line[len(far_side.MARK) :])
                yield record
                if "end" in record:
                    return


def _twice(ask: Callable[[], Answer]) -> Answer:
    try:
        return ask()
    except LineDroppedError:
        time.sleep(0.5)
    try:
        return ask()
    except LineDroppedError as error:
        raise UserError(
            Finding(
                slug="remote-dropped",
                what="the connection ended twice in the middle of a question",
                why=f"ssh says: {error}",
                fix="try again; `ssh -v` shows what happens on the line",
            ),
            exit_code=ExitCode.LAUNCH,
        ) from error


def _failed(place: Place, operation: str, why: str) -> Finding:
    return Finding(
        slug="remote-failed",
        what=f"`{operation}` has failed on {place.target}: {why.splitlines()[-1] if why else '?'}",
        why="said by what Phalanx runs there",
        fix=f"phalanx remote check {place.name}",
    )


def _runtime_folder() -> str:
    """Where the socket's folder goes: plain, as rsync reads it, and short, as sockets need."""
    for base in (os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir()):
        is_plain = re.fullmatch(r"/[A-Za-z0-9/._+-]*", base, re.ASCII)
        if is_plain and len(base) + len("/phalanx-12345678") <= _MAX_FOLDER and Path(base).is_dir():
            return base
    return "/tmp"  # noqa: S108 - the folder that is made in it is the user's alone
