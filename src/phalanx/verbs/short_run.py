"""A run in a folder that is thrown away: for `evaluate`, `bench`, `verify` and `--ladder`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from phalanx.errors import ExitCode, Finding
from phalanx.prepare.launcher import Launcher
from phalanx.prepare.open_run import open_run
from phalanx.prepare.plan import Prepared
from phalanx.prepare.scratch_run import RunFailedError
from phalanx.run.directory import RunDirectory
from phalanx.run.event_kinds import FindingMade, Outcome
from phalanx.run.events import Event
from phalanx.run.purpose import TRAIN, Purpose
from phalanx.supervise.job import JobWorkload
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
            raise RunFailedError(self.outcome.findings, exit_code=ExitCode(self.outcome.exit_code))


def run_short(
    prepared: Prepared,
    folder: Path,
    name: str,
    *,
    launcher: Launcher,
    purpose: Purpose = TRAIN,
    on_event: Callable[[Event], None] = lambda event: None,
    is_kept_up: bool = False,
) -> ShortRun:
    """Run a plan to its end in `folder`. With `is_kept_up` ranks are restarted, and ended when they
    hang, as the job says; otherwise they are started once and may be silent for any time."""
    job = prepared.job.model_copy(update={"output": str(folder), "name": name})
    findings: list[Finding] = []

    def take(event: Event) -> None:
        if isinstance(event.body, FindingMade):
            finding = event.body.finding
            if finding not in findings:
                findings.append(finding)
        on_event(event)

    with open_run(replace(prepared, job=job, run=None, findings=[]), purpose=purpose) as run:
        kept = job if is_kept_up else None
        workload = JobWorkload(run, prepared.plan, launcher, job=kept)
        outcome = Supervisor(run, workload, on_event=take).run()
    return ShortRun(run, outcome, findings)
