"""Run an unmodified training script to its end: `phalanx launch` and `phalanx.launch`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from phalanx.errors import Finding, short_path
from phalanx.run.directory import RunDirectory
from phalanx.run.event_kinds import Evaluate, Step
from phalanx.run.events import Event
from phalanx.scripts.request import PreparedScript, open_script_run
from phalanx.scripts.workload import ScriptWorkload
from phalanx.supervise.supervisor import Supervisor

if TYPE_CHECKING:
    from phalanx.places.nodes.leader import Nodes


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
    seconds: float = 0.0
    """From the first check to the end."""


class ScriptView(Protocol):
    """Shows a launched script as it happens."""

    def line(self, rank: int, text: str, is_update: bool) -> None:
        """Show a line that a rank printed."""

    def take(self, event: Event) -> None:
        """Show one event."""


class Silent:
    """Shows nothing."""

    def line(self, rank: int, text: str, is_update: bool) -> None: ...

    def take(self, event: Event) -> None: ...


def launch(
    prepared: PreparedScript,
    *,
    show: Callable[[PreparedScript, Path], ScriptView] = lambda prepared, logs: Silent(),
    on_open: Callable[[RunDirectory], None] = lambda run: None,
    nodes: Nodes | None = None,
) -> ScriptResult:
    """Open the run directory and run the script to its end. `on_open` is called once the directory
    is held, before anything is shown; `nodes` have met this node, which leads them."""
    began_s = time.monotonic()
    loss: float | None = None
    metrics: dict[str, float] = {}
    with open_script_run(prepared) as run:
        on_open(run)
        view = show(prepared, short_path(run.logs))

        def take(event: Event) -> None:
            nonlocal loss, metrics
            if isinstance(event.body, Step) and event.body.loss is not None:
                loss = event.body.loss
            elif isinstance(event.body, Evaluate):
                metrics = event.body.metrics
            view.take(event)

        workload = ScriptWorkload(run, prepared, on_line=view.line, place=nodes)
        supervisor = Supervisor(run, workload, on_event=take)
        outcome = supervisor.run()
    if nodes is not None:
        nodes.tell_end(outcome.status, outcome.exit_code, outcome.reason, outcome.findings)
    return ScriptResult(
        status=outcome.status,
        exit_code=outcome.exit_code,
        run=short_path(run.path),
        step=outcome.step,
        loss=loss,
        restarts=supervisor.restarts,
        reason=outcome.reason,
        metrics=metrics,
        findings=outcome.findings,
        seconds=time.monotonic() - began_s,
    )
