"""Runs over there: listed, followed, told to stop."""

from __future__ import annotations

import base64
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from phalanx.errors import ExitCode, Finding, UserError, did_you_mean
from phalanx.places.remote.answers import RemoteRun, Runs, Told
from phalanx.places.remote.refusals import AGAIN
from phalanx.places.remote.ssh import BEAT_S, Connection, LineDroppedError
from phalanx.run.directory import LATEST
from phalanx.run.events import Event, parse

PATIENCE_S = 600.0
"""How long a lost machine is tried again before we give up following."""
RUN_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}"
_LONGEST_WAIT_S = 15.0
_LOG = "output.log"


def list_runs(connection: Connection) -> list[RemoteRun]:
    """Every run that was started there, the newest last."""
    said = connection.ask(Runs, "runs", path=connection.place.path)
    # A name becomes a folder here: one that leaves it, or is a name of ours, is not taken from a
    # machine that was broken into.
    return [
        run
        for run in said.runs
        if re.fullmatch(RUN_NAME, run.name, re.ASCII) and run.name != LATEST
    ]


def find_remote_run(connection: Connection, name: str | None) -> RemoteRun:
    """The run of this name; the newest when none is named."""
    runs = list_runs(connection)
    wanted = None if name in (None, LATEST) else str(name).rstrip("/").rpartition("/")[2]
    for run in reversed(runs):
        if wanted in (None, run.name):
            return run
    names = [run.name for run in runs]
    target = connection.place.target
    raise UserError(
        Finding(
            slug="remote-run-unknown",
            what=f"no run {wanted!r} on {target}{did_you_mean(wanted, names)}"
            if wanted
            else f"no run was started on {target}",
            why=f"known there: {', '.join(names[-5:]) or 'none'} (in {connection.place.path})",
            fix=f"phalanx remote runs {connection.place.name}"
            if runs
            else f"phalanx remote train {connection.place.name} digits",
        )
    )


def stop_run(connection: Connection, run: RemoteRun) -> bool:
    """Tell a run to finish its step, save and end; whether it was still there to hear it."""
    path, number = connection.place.path, int(signal.SIGTERM)
    return connection.ask(Told, "tell", path=path, name=run.name, number=number).is_told


@dataclass
class Listener:
    """Who hears what a run says."""

    on_plan: Callable[[dict[str, Any]], None]
    on_event: Callable[[Event], None]
    on_output: Callable[[str], None]
    """What it printed, as it comes."""
    on_line: Callable[[str], None]
    """About the connection: lost, there again."""
    on_file: Callable[[str, bytes], None] | None = None
    """The job file, a picture or a film, by its name in the run directory. None: they are not
    sent."""


class Follower:
    """Reads what a run writes, from where it was last, over as many connections as it takes."""

    def __init__(
        self, connection: Connection, name: str, listener: Listener, *, is_from_now: bool = False
    ) -> None:
        self._connection = connection
        self._name = name
        self._listener = listener
        self._offsets: dict[str, int] | None = None if is_from_now else {}
        self._waiting: list[Event] = []
        self._shown: list[str] = []
        self._parts: list[bytes] = []

    def follow(self, *, patience_s: float = PATIENCE_S) -> int | str:
        """Until the run ends: its exit code, or `gone`."""
        lost_at: float | None = None
        wait_s = 0.5
        while True:
            try:
                for record in self._connection.stream(
                    "follow",
                    path=self._connection.place.path,
                    name=self._name,
                    offsets=self._offsets,
                    beat_s=BEAT_S,
                    shown=None if self._listener.on_file is None else self._shown,
                ):
                    if lost_at is not None:
                        self._listener.on_line("connected again")
                        lost_at, wait_s = None, 0.5
                    self._take(record)
                    if "end" in record:
                        end: int | str = record["end"]
                        return end
                raise LineDroppedError("the connection ended")
            except (LineDroppedError, UserError) as error:
                if isinstance(error, UserError) and error.findings[0].slug not in AGAIN:
                    raise
                if lost_at is None:
                    lost_at = time.monotonic()
                    self._listener.on_line("the connection was lost; the run goes on: trying again")
                if time.monotonic() - lost_at > patience_s:
                    raise UserError(self._lost(patience_s, error), exit_code=ExitCode.FAILED) from (
                        error
                    )
                self._connection.hang_up()
                self._parts.clear()
                time.sleep(wait_s)
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def _take(self, record: dict[str, Any]) -> None:
        if "offsets" in record:
            self._offsets = record["offsets"]
        elif "plan" in record:
            self._listener.on_plan(record["plan"])
        elif "file" in record:
            assert self._offsets is not None, "a file is read from an offset on"
            self._offsets[record["file"]] = record["after"]
            if record["file"] == _LOG:
                self._listener.on_output(record["text"])
            else:
                lines = record["text"].encode().splitlines()
                self._waiting += [event for line in lines if (event := parse(line)) is not None]
        elif "shown" in record:
            self._take_part(record)
        if "turn" in record or "end" in record:
            # Of several writers: what they wrote between two looks, in the order of time.
            for event in sorted(self._waiting, key=lambda event: event.time_s):
                self._listener.on_event(event)
            self._waiting.clear()

    def _take_part(self, record: dict[str, Any]) -> None:
        self._parts.append(base64.b64decode(record["data"]))
        if record["is_whole"]:
            data, self._parts = b"".join(self._parts), []
            self._shown.append(record["shown"])
            if self._listener.on_file is not None:
                self._listener.on_file(record["shown"], data)

    def _lost(self, patience_s: float, error: Exception) -> Finding:
        place = self._connection.place
        return Finding(
            slug="remote-lost",
            what=f"{place.target} was not reached again for {patience_s:.0f} s",
            why=f"{error}; the run itself goes on there as far as is known",
            fix=f"phalanx remote attach {place.name} {self._name}",
        )
