"""A launched script as it happens: its own output by rank, and what was made of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phalanx.errors import Finding, format_seconds
from phalanx.machine.environment import show_variables
from phalanx.output import console
from phalanx.places.nodes.leader import Nodes
from phalanx.run.directory import RunDirectory
from phalanx.run.events import Event
from phalanx.scripts.request import PreparedScript, open_script_run
from phalanx.scripts.supervisor import ScriptSupervisor

_BAR_EVERY_S = 10.0  # a bar in a pipe, as a line


@dataclass(frozen=True)
class ScriptResult:
    """How a launched script ended."""

    status: str
    """finished, stopped or failed."""
    exit_code: int
    """The first failing rank's; 128 + the signal when it was killed."""
    run: Path
    """The run directory."""
    step: int | None
    """The last step its output named; None when it named none."""
    loss: float | None
    """The last loss its output named."""
    restarts: int
    reason: str
    metrics: dict[str, float] = field(default_factory=dict)
    """The last evaluation its output named."""
    findings: list[Finding] = field(default_factory=list)


def run_script(
    prepared: PreparedScript,
    *,
    is_quiet: bool = False,
    on_open: Callable[[RunDirectory], None] = lambda run: None,
    nodes: Nodes | None = None,
) -> ScriptResult:
    """Open the run directory, run the script to its end, and show it on the way. `on_open` is
    called once the directory is held, before anything is shown."""
    began_s = time.monotonic()
    with open_script_run(prepared) as run:
        on_open(run)
        view = ScriptView(prepared, console.short_path(run.logs), is_quiet=is_quiet)
        outcome = ScriptSupervisor(
            run, prepared, on_line=view.line, on_event=view.take, nodes=nodes
        ).run()
    result = ScriptResult(
        status=outcome.status,
        exit_code=outcome.exit_code,
        run=console.short_path(run.path),
        step=outcome.step,
        loss=view.loss,
        restarts=outcome.restarts,
        reason=outcome.reason,
        metrics=view.metrics,
        findings=outcome.findings,
    )
    console.show_findings(result.findings)
    _say(_summary(result, time.monotonic() - began_s))
    return result


def _summary(result: ScriptResult, seconds: float) -> str:
    facts = [f"exit code {result.exit_code}", format_seconds(seconds)]
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
        self._starts: dict[int, dict[str, Any]] = {}
        self._last_bar_s = 0.0
        self._has_bar = False
        self.loss: float | None = None
        self.metrics: dict[str, float] = {}

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
        """Show an event, and keep the figures that the end needs."""
        data = event.data
        if self._has_bar and event.kind in ("stop", "finding") and console.stdout().is_terminal:
            self._has_bar = False
            console.pass_on("")  # messages begin on a line of their own
        if event.kind == "start":
            self._starts[data["rank"]] = data
            if len(self._starts) == data["world"]:
                self._show_start(event.attempt)
        elif event.kind == "step" and data["loss"] is not None:
            self.loss = data["loss"]
        elif event.kind == "evaluate":
            self.metrics = data["metrics"]
        elif event.kind == "stop":
            _say(data["reason"])
        elif event.kind == "finding":
            console.show_findings([Finding.from_json(data["finding"])])

    def _show_start(self, attempt: int) -> None:
        prepared = self._prepared
        over = f", {prepared.backend} as a rule" if prepared.world > 1 else ""
        again = f", attempt {attempt + 1}" if attempt else ""
        _say(f"world size {prepared.world}{over}{again}")
        for rank in range(prepared.world):
            start = self._starts[rank]
            _say(f"  rank {rank}: {start['device']}, pid {start['pid']}")
        if prepared.machine.environment:
            _say(f"  environment: {show_variables(prepared.machine.environment)}")
        _say(f"  logs: {self._logs}/rank-N.log")
        self._starts.clear()
