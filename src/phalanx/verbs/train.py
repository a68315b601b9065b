"""Train a job to its end: what `phalanx train` and `phalanx.train` both do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from phalanx.errors import ExitCode, Finding, short_path
from phalanx.prepare.compile_cache import early_variables
from phalanx.prepare.launcher import Launcher, LauncherError
from phalanx.run.directory import RunDirectory
from phalanx.run.event_kinds import Evaluate, RankStarted, Step
from phalanx.run.events import Event

if TYPE_CHECKING:  # torch is imported by the launcher before these are imported here
    from phalanx.job import Override
    from phalanx.places.nodes.leader import Nodes
    from phalanx.places.nodes.meeting_terms import Met
    from phalanx.places.torchrun import Torchrun
    from phalanx.planner.schema.plan import Plan
    from phalanx.prepare.job import Source
    from phalanx.prepare.plan import Prepared
    from phalanx.supervise.job import Recovery


@dataclass(frozen=True)
class Result:
    """How a training run ended."""

    status: str
    """finished, stopped or failed; planned when nothing was to be trained."""
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


class RunFigures:
    """Figures of a run, collected from its events."""

    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}
        self.best: Evaluate | None = None
        self.seconds = 0.0
        self.first_step = 0
        self.num_steps = 0
        self._started_s: float | None = None

    def take(self, event: Event) -> None:
        match event.body:
            case RankStarted(step=step):
                self.first_step, self._started_s = step or 0, event.time_s
            case Step():
                self.num_steps += 1
                if self._started_s is not None:
                    self.seconds = event.time_s - self._started_s
            case Evaluate() as found:
                self.metrics = found.metrics
                self.best = found if found.is_best else self.best


class View(Protocol):
    """Shows a run as it happens."""

    def take(self, event: Event) -> None:
        """Show one event."""

    def use_plan(self, plan: Plan) -> None:
        """Show progress against another plan revision from here on."""


class Silent:
    """Shows nothing."""

    def take(self, event: Event) -> None: ...

    def use_plan(self, plan: Plan) -> None: ...


@dataclass(frozen=True)
class Hooks:
    """What a caller of `train` is told on the way, in the order in which it happens."""

    working: Callable[[str], AbstractContextManager[Callable[[str], None]]] = lambda what: (
        nullcontext(lambda text: None)
    )
    """Entered while machine and recipe are examined; the value is told what is examined next."""
    on_prepared: Callable[[Prepared, Launcher], None] = lambda prepared, launcher: None
    """Checks have passed, nothing is written yet."""
    on_finding: Callable[[Finding], None] = lambda finding: None
    """The run is held by others who are to end: why this one waits."""
    on_open: Callable[[RunDirectory], None] = lambda run: None
    """The run directory exists and is held."""
    say: Callable[[str], None] = lambda text: None
    show: Callable[[Plan, Path, RunFigures], AbstractContextManager[View]] = (
        lambda plan, logs, figures: nullcontext(Silent())
    )


def train(
    source: Source | None,
    overrides: Sequence[Override | str] = (),
    *,
    resume: str | None = None,
    accept_changes: bool = False,
    is_fresh: bool = False,
    is_dry_run: bool = False,
    torchrun: Torchrun | None = None,
    nodes: Nodes | None = None,
    hooks: Hooks | None = None,
) -> Result:
    """Plan a job, start its ranks, and follow them to the end. Raises UserError if it cannot start.

    `torchrun` started this process as rank 0; `nodes` have met this node, which leads them;
    `is_fresh` asks the recipe again although its answer is cached; `is_dry_run` stops once all is
    prepared."""
    hooks = hooks or Hooks()
    with _launcher(torchrun) as launcher:
        # A resumed run may need other variables, and so may nodes that have just met.
        if torchrun is None and nodes is None and resume is None and not is_dry_run:
            with suppress(LauncherError):  # reported when ranks are requested
                launcher.start(early_variables())
        from phalanx.prepare.plan import prepare

        one, many = (
            "looking at the machine and the recipe",
            "looking at the machines and the recipe",
        )
        with hooks.working(one if nodes is None else many) as say:
            prepared = prepare(
                source,
                overrides,
                resume=resume,
                accept_changes=accept_changes,
                adapt=torchrun.place if torchrun is not None else None,
                launcher=None if is_dry_run else launcher,
                is_fresh=is_fresh or torchrun is not None,
                gather=nodes.gather if nodes is not None else None,
                nodes=nodes.count if nodes is not None else 1,
                say=say,
            )
        if torchrun is not None:
            prepared = torchrun.judge(prepared)
        if nodes is not None:
            nodes.check(prepared.plan)
            prepared = replace(prepared, findings=[*nodes.findings, *prepared.findings])
        hooks.on_prepared(prepared, launcher)
        result = _PLANNED
        if not is_dry_run:
            result = run_prepared(prepared, launcher, hooks=hooks, nodes=nodes)
        if nodes is not None:
            code = int(result.exit_code)
            nodes.tell_end(result.status, code, result.reason, result.findings)
    return result


_PLANNED = Result("planned", ExitCode.OK, Path(), None, "only a plan was asked for (--dry-run)")


def _launcher(torchrun: Torchrun | None) -> Launcher:
    if torchrun is None:
        return Launcher()
    from phalanx.places.torchrun import TorchrunLauncher

    return TorchrunLauncher(torchrun)


def run_prepared(
    prepared: Prepared, launcher: Launcher, *, hooks: Hooks, nodes: Nodes | None = None
) -> Result:
    """Open the run directory and run it to its end. A cached plan that turns out to be outdated is
    made again, in the same run directory."""
    from phalanx.prepare.open_run import open_run
    from phalanx.supervise.job import JobWorkload
    from phalanx.supervise.supervisor import Supervisor

    while True:
        figures = RunFigures()
        with open_run(prepared, tell=hooks.on_finding) as run:
            hooks.on_open(run)
            with hooks.show(prepared.plan, short_path(run.logs), figures) as view:

                def take(event: Event, figures: RunFigures = figures, view: View = view) -> None:
                    figures.take(event)
                    view.take(event)

                workload = JobWorkload(
                    run,
                    prepared.plan,
                    launcher,
                    job=prepared.job,
                    has_sinks=True,
                    on_plan=view.use_plan,
                    place=nodes,
                    recovery=_recovery(prepared, nodes),
                )
                outcome = Supervisor(run, workload, on_event=take).run()
        is_outdated = any(finding.slug == "plan-outdated" for finding in outcome.findings)
        if prepared.prepare_anew is None or not is_outdated:
            break
        hooks.say("the data has changed since the recipe was asked: asking it, planning anew")
        revision = prepared.plan.revision + 1
        again = prepared.prepare_anew()
        prepared = replace(again, plan=replace(again.plan, revision=revision), run=run)
    best = None
    if figures.best is not None:
        name = prepared.plan.evaluation.metric.value
        best = f"{name} {figures.best.metrics[name]:.4f} at step {figures.best.step}"
    is_idle = outcome.status == "finished" and figures.num_steps == 0
    return Result(
        status=outcome.status,
        exit_code=ExitCode(outcome.exit_code),
        run=short_path(run.path),
        step=outcome.step,
        reason="already finished, nothing was left to do" if is_idle else outcome.reason,
        metrics=figures.metrics,
        best=best,
        seconds=figures.seconds,
        findings=outcome.findings,
    )


def _recovery(prepared: Prepared, nodes: Nodes | None) -> Recovery | None:
    if nodes is None:
        return None
    from phalanx.places.nodes.recovery import NodeRecovery
    from phalanx.prepare.open_run import replanned

    return NodeRecovery(nodes, prepared.job.devices, partial(replanned, prepared))


def follow_node(
    met: Met, output: Path, say: Callable[[str], None]
) -> tuple[int, list[Finding], str]:
    """Train on a node that is not node 0: start ranks when node 0 asks for them. Return the exit
    code, the findings and the words that node 0 decided on."""
    from phalanx.machine import cannot_train, probe_machine
    from phalanx.places.nodes.follower import NodeFollower
    from phalanx.places.nodes.messages import CannotJoin, MachineFound
    from phalanx.places.nodes.starters import JobStarter
    from phalanx.prepare.torch_facts import remembering_torch

    try:
        with Launcher() as launcher:
            with suppress(LauncherError):  # reported when ranks are requested
                launcher.start(early_variables())
            machine = probe_machine(output, ask=remembering_torch())
            unfit = cannot_train(machine)
            if unfit:
                met.links[0].send(CannotJoin(unfit, ExitCode.MACHINE))
                return int(ExitCode.MACHINE), unfit, ""
            met.links[0].send(MachineFound(machine))
            return NodeFollower(met, JobStarter(launcher, met.settings), say).run()
    finally:
        met.close()
