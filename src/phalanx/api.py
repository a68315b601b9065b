"""Phalanx from Python: `check`, `plan` and `train` as functions, also in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phalanx.errors import ExitCode, Finding, UserError
from phalanx.job import Override
from phalanx.launch.prepare import Prepared, Source, open_run, prepare
from phalanx.machine import Machine, check_machine, probe_machine
from phalanx.plan.plan import Plan


@dataclass(frozen=True)
class Result:
    """How a training run ended."""

    status: str
    """finished, stopped or failed."""
    exit_code: ExitCode
    run: Path
    """The run directory."""
    step: int
    """Optimizer steps done since the run began."""
    reason: str
    metrics: dict[str, float] = field(default_factory=dict)
    """The last evaluation."""
    best: str | None = None
    """The best evaluation, in words."""
    seconds: float = 0.0
    """Time spent training in this session."""
    findings: list[Finding] = field(default_factory=list)


def check(output: str | Path = "runs") -> tuple[Machine, list[Finding]]:
    """What there is on this machine, and what is wrong with it."""
    machine = probe_machine(Path(output))
    return machine, check_machine(machine)


def plan(job: Source, *overrides: str, **keys: Any) -> Plan:
    """What training a job would do. `plan("digits", epochs=3)`; raises UserError."""
    return prepare(job, _overrides(overrides, keys)).plan


def train(
    job: Source | None = None, *overrides: str, resume: str | Path | None = None, **keys: Any
) -> Result:
    """Train a job to its end. `train("digits", epochs=3)`; raises UserError if it cannot start or
    if a rank fails."""
    prepared = prepare(
        job, _overrides(overrides, keys), resume=str(resume) if resume is not None else None
    )
    result = run_prepared(prepared)
    if result.status == "failed":
        raise UserError(result.findings, exit_code=result.exit_code)
    return result


def _overrides(texts: Sequence[str], keys: dict[str, Any]) -> list[Override | str]:
    return [*texts, *(Override(key, value, "python") for key, value in keys.items())]


def run_prepared(prepared: Prepared) -> Result:
    """Make the run directory, run it to its end, and show it on the way."""
    from phalanx.cli.progress import RunView
    from phalanx.launch.supervisor import Supervisor

    run = open_run(prepared)
    with RunView(prepared.plan) as view:
        outcome = Supervisor(
            run,
            prepared.plan,
            max_restarts=prepared.job.max_restarts,
            tensorboard=prepared.job.logging.tensorboard,
            on_event=view.take,
        ).run()
    best = None
    if view.best is not None:
        name = prepared.plan.metric.value
        best = f"{name} {view.best['metrics'][name]:.4f} at step {view.best['step']}"
    return Result(
        status=outcome.status,
        exit_code=outcome.exit_code,
        run=_short(run.path),
        step=outcome.step or 0,
        reason=outcome.reason,
        metrics=view.metrics,
        best=best,
        seconds=view.trained_s,
        findings=outcome.findings,
    )


def _short(path: Path) -> Path:
    """The path as a person would type it from here."""
    try:
        return path.relative_to(Path.cwd())
    except ValueError:
        return path
