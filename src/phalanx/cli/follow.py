"""Runs a prepared job to its end and shows it: what the command and `phalanx.train` share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from phalanx.errors import ExitCode, Finding
from phalanx.output import console
from phalanx.output.progress import RunView
from phalanx.places.nodes.leader import Nodes
from phalanx.prepare.launcher import Launcher
from phalanx.prepare.prepare import Prepared, open_run, replanned
from phalanx.run.directory import RunDirectory
from phalanx.supervise.hang import watch_for
from phalanx.supervise.sinks import sinks_of
from phalanx.supervise.supervisor import Supervisor


@dataclass(frozen=True)
class Result:
    """How a training run ended."""

    status: str
    """finished, stopped or failed."""
    exit_code: ExitCode
    run: Path
    """The run directory."""
    step: int | None
    """Optimizer steps done since the run began; None when a rank died."""
    reason: str
    metrics: dict[str, float] = field(default_factory=dict)
    """The last evaluation."""
    best: str | None = None
    """The best evaluation of this session, in words."""
    seconds: float = 0.0
    """Time spent training in this session."""
    findings: list[Finding] = field(default_factory=list)


def run_prepared(
    prepared: Prepared,
    launcher: Launcher,
    *,
    on_open: Callable[[RunDirectory], None] = lambda run: None,
    nodes: Nodes | None = None,
) -> Result:
    """Open the run directory, run it to its end, and show it on the way. A plan from memory that
    turns out to be outdated is made anew, in the same run directory. `on_open` is called once the
    directory is held, before anything is shown."""
    with open_run(prepared, tell=lambda finding: console.show_findings([finding])) as run:
        on_open(run)
        with RunView(prepared.plan, console.short_path(run.logs)) as view:
            outcome = Supervisor(
                run,
                prepared.plan,
                launcher=launcher,
                max_restarts=prepared.job.max_restarts,
                watch=watch_for(prepared.job, prepared.plan),
                sinks=sinks_of(prepared.job.logging),
                on_event=view.take,
                on_plan=view.use_plan,
                nodes=nodes,
                devices=prepared.job.devices,
                replan=lambda machine, plan: replanned(prepared, machine, plan),
            ).run()
    if prepared.prepare_anew is not None and any(
        f.slug == "plan-outdated" for f in outcome.findings
    ):
        console.say("the data has changed since the recipe was asked: asking it, planning anew")
        anew = prepared.prepare_anew()
        plan = replace(anew.plan, revision=prepared.plan.revision + 1)
        anew = replace(anew, plan=plan, run=run)
        return run_prepared(anew, launcher, on_open=on_open, nodes=nodes)
    best = None
    if view.best is not None:
        name = prepared.plan.metric.value
        best = f"{name} {view.best['metrics'][name]:.4f} at step {view.best['step']}"
    is_idle = outcome.status == "finished" and view.num_steps == 0
    return Result(
        status=outcome.status,
        exit_code=outcome.exit_code,
        run=console.short_path(run.path),
        step=outcome.step,
        reason="already finished, nothing was left to do" if is_idle else outcome.reason,
        metrics=view.metrics,
        best=best,
        seconds=view.trained_s,
        findings=outcome.findings,
    )
