"""A run in a folder that is thrown away: for `evaluate`, `bench`, `verify` and `--ladder`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from phalanx.errors import Finding
from phalanx.job.schema import Hang
from phalanx.prepare.launcher import Launcher
from phalanx.prepare.open_run import open_run
from phalanx.prepare.plan import Prepared
from phalanx.prepare.scratch_run import RunFailedError
from phalanx.run.directory import RunDirectory
from phalanx.run.event_kinds import FindingMade
from phalanx.run.events import Event
from phalanx.run.purpose import TRAIN, Purpose
from phalanx.supervise.hang import HangWatch
from phalanx.supervise.outcomes import Outcome
from phalanx.supervise.supervisor import Supervisor


@dataclass(frozen=True)
class ShortRun:
    """How a short run ended."""

    directory: RunDirectory
    outcome: Outcome
    findings: list[Finding]
    """Reported by the ranks, each once."""

    def raise_if_failed(self) -> None:
        """Raise RunFailedError if the ranks failed."""
        if self.outcome.status == "failed":
            raise RunFailedError(self.outcome.findings, exit_code=self.outcome.exit_code)


def run_short(
    prepared: Prepared,
    folder: Path,
    name: str,
    *,
    launcher: Launcher,
    purpose: Purpose = TRAIN,
    on_event: Callable[[Event], None] = lambda event: None,
    max_restarts: int = 0,
    watch: HangWatch | None = None,
) -> ShortRun:
    """Run a plan to its end in `folder`. Without a `watch` a rank may be silent for any time."""
    job = prepared.job.model_copy(update={"output": str(folder), "name": name})
    findings: list[Finding] = []

    def take(event: Event) -> None:
        if isinstance(event.body, FindingMade):
            finding = event.body.finding
            if finding not in findings:
                findings.append(finding)
        on_event(event)

    with open_run(replace(prepared, job=job, run=None, findings=[]), purpose=purpose) as run:
        outcome = Supervisor(
            run,
            prepared.plan,
            launcher=launcher,
            max_restarts=max_restarts,
            watch=watch or HangWatch(Hang(after_s=None)),
            sinks=None,
            on_event=take,
        ).run()
    return ShortRun(run, outcome, findings)
