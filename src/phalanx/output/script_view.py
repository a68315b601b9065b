"""A launched script as it happens: its own output by rank, and what was made of it."""

from __future__ import annotations

import time
from pathlib import Path

from phalanx.errors import format_seconds
from phalanx.machine.environment import show_variables
from phalanx.output import console
from phalanx.run.event_kinds import FindingMade, RankStarted, StopAsked
from phalanx.run.events import Event
from phalanx.scripts.request import PreparedScript
from phalanx.verbs.launch import ScriptResult

_BAR_EVERY_S = 10.0  # a bar in a pipe, as a line


def show_end(result: ScriptResult) -> None:
    """Show what is wrong, and one line about how the script ended."""
    console.show_findings(result.findings)
    _say(_summary(result))


def _summary(result: ScriptResult) -> str:
    facts = [f"exit code {result.exit_code}", format_seconds(result.seconds)]
    if result.step is not None:
        facts.append(f"step {result.step}")
    if result.loss is not None:
        facts.append(f"last loss {result.loss:.4g}")
    if result.restarts:
        facts.append(f"{result.restarts} restart{'' if result.restarts == 1 else 's'}")
    return f"{result.status}: {', '.join(facts)}; {result.run}"


def _say(text: str) -> None:
    console.tell(text)


class ScriptView:
    """Shows lines and events of one launched script."""

    def __init__(self, prepared: PreparedScript, logs: Path, *, is_quiet: bool) -> None:
        self._prepared = prepared
        self._logs = logs
        self._is_quiet = is_quiet
        self._starts: dict[int, RankStarted] = {}
        self._last_bar_s = 0.0
        self._has_bar = False

    def line(self, rank: int, text: str, is_update: bool) -> None:
        """Show a line. Of bars only rank 0's: several cannot share a line of a terminal."""
        if rank > 0 and (self._is_quiet or is_update):
            return
        if is_update and not console.stdout().is_terminal:
            now = time.monotonic()
            if now - self._last_bar_s < _BAR_EVERY_S:
                return
            self._last_bar_s = now
        is_named = self._prepared.world > 1 and not self._is_quiet
        self._has_bar = is_update
        console.pass_on(f"[rank {rank}] {text}" if is_named else text, is_update=is_update)

    def take(self, event: Event) -> None:
        """Show an event."""
        is_message = isinstance(event.body, StopAsked | FindingMade)
        if self._has_bar and is_message and console.stdout().is_terminal:
            self._has_bar = False
            console.pass_on("")  # messages begin on a line of their own
        match event.body:
            case RankStarted() as start:
                self._starts[start.rank] = start
                if len(self._starts) == start.world:
                    self._show_start(event.attempt)
            case StopAsked(reason=reason):
                _say(reason)
            case FindingMade(finding=finding):
                console.show_findings([finding])

    def _show_start(self, attempt: int) -> None:
        prepared = self._prepared
        over = f", {prepared.backend} as a rule" if prepared.world > 1 else ""
        again = f", attempt {attempt + 1}" if attempt else ""
        _say(f"world size {prepared.world}{over}{again}")
        for rank in range(prepared.world):
            start = self._starts[rank]
            _say(f"  rank {rank}: {start.device}, pid {start.pid}")
        if prepared.machine.environment:
            _say(f"  environment: {show_variables(prepared.machine.environment)}")
        _say(f"  logs: {self._logs}/rank-N.log")
        self._starts.clear()
