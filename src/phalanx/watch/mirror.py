"""A run on another machine, followed over ssh into a folder of its own: what is watched is then a
run directory like any other."""

from __future__ import annotations

import json
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from phalanx.errors import UserError
from phalanx.places.remote.places import find_place
from phalanx.places.remote.runs import Follower, Listener, find_remote_run
from phalanx.places.remote.ssh import Connection
from phalanx.run.directory import RunDirectory, write_atomic
from phalanx.run.events import Event
from phalanx.watch.watched_run import WatchedRun

_FIRST_S = 20.0
_QUIET_S = 0.4  # without an event: the far side looks five times a second
_WRITER = re.compile(r"[a-z0-9-]{1,64}", re.ASCII)
# What is written here is named over there: nothing but these, and nothing outside of the folder.
_SHOWN = re.compile(
    r"job\.yaml|media/step-\d{1,18}/[A-Za-z0-9_][A-Za-z0-9_.-]{0,120}\.(png|jpg|mp4)", re.ASCII
)


@contextmanager
def mirrored(place: str, name: str | None) -> Iterator[WatchedRun]:
    """The run of that name on a machine, the newest when none is named. Raises UserError when there
    is none; a line that drops is taken up again."""
    connection = Connection(find_place(place))
    with connection, tempfile.TemporaryDirectory(prefix="phalanx-watch-") as folder:
        remote = find_remote_run(connection, name)
        run = RunDirectory(Path(folder) / remote.name)
        for path in (run.events, run.logs):
            path.mkdir(parents=True)
        mirror = _Mirror(run)
        follower = Follower(connection, remote.name, mirror.listener())
        thread = threading.Thread(target=mirror.fill, args=(follower,), daemon=True)
        thread.start()
        mirror.wait_for_what_is_there()
        try:
            yield WatchedRun(run, is_kept=False, is_alive=lambda: not mirror.is_over)
        finally:
            connection.hang_up()
            thread.join(timeout=5.0)
            mirror.close()


class _Mirror:
    """Writes what comes over the line as the far side's files have it."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._files: dict[str, IO[bytes]] = {}
        self.is_over = False
        self._has_first = threading.Event()
        self._heard_s = 0.0

    def wait_for_what_is_there(self) -> None:
        """Until the events of the past have come: without them the first picture would be empty."""
        self._has_first.wait(timeout=_FIRST_S)
        deadline = time.monotonic() + _FIRST_S
        while not self.is_over and time.monotonic() < min(deadline, self._heard_s + _QUIET_S):
            time.sleep(0.05)

    def listener(self) -> Listener:
        return Listener(
            self._plan, self._event, self._output, lambda text: None, on_file=self._file
        )

    def fill(self, follower: Follower) -> None:
        with suppress(UserError, OSError, ValueError):  # ended here, or not reached for long
            follower.follow()
        self.is_over = True
        self._has_first.set()

    def _plan(self, record: dict[str, Any]) -> None:
        write_atomic(self._run.plan_file, json.dumps(record))

    def _event(self, event: Event) -> None:
        if _WRITER.fullmatch(event.writer):
            self._append(f"events/{event.writer}.jsonl", event.to_line().encode())
        self._heard_s = time.monotonic()
        self._has_first.set()

    def _file(self, name: str, data: bytes) -> None:
        if _SHOWN.fullmatch(name):
            path = self._run.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, data)
        self._heard_s = time.monotonic()

    def _output(self, text: str) -> None:
        self._append("logs/command.log", text.encode())

    def _append(self, name: str, data: bytes) -> None:
        file = self._files.get(name)
        if file is None:
            file = self._files[name] = (self._run.path / name).open("ab", buffering=0)
        file.write(data)

    def close(self) -> None:
        for file in self._files.values():
            file.close()
