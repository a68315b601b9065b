"""Everything before the first rank: load the job, judge it, look at machine and recipe, plan.

Each stage reports all its problems at once, and nothing is created before all have passed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from phalanx.errors import ExitCode, Finding, UserError
from phalanx.job import LoadedJob, Override, gpu_findings
from phalanx.job.schema import Job
from phalanx.machine import Machine, cannot_train, check_machine, parse_machine, probe_machine
from phalanx.machine.calibration import Calibration
from phalanx.machine.gpus import may_have_cuda
from phalanx.planner.resume import resume_findings
from phalanx.planner.schema.plan import Plan
from phalanx.planner.schema.trace import Trace
from phalanx.planner.solve import solve_plan
from phalanx.planner.trace_precisions import wanted_on, wanted_precisions
from phalanx.prepare.calibrations import find_calibration
from phalanx.prepare.compile_cache import early_variables
from phalanx.prepare.job import Source, raise_if_errors, read_job
from phalanx.prepare.launcher import Launcher, LauncherError
from phalanx.prepare.torch_facts import AskTorch, remembering_torch
from phalanx.prepare.trace import AskTrace, trace_recipe
from phalanx.prepare.trace_cache import remembering
from phalanx.prepare.validated_before import recall_comparison
from phalanx.run.cache import cache_folder
from phalanx.run.directory import RunDirectory


class Gather(Protocol):
    """Makes one machine of this one and the nodes it has met."""

    def __call__(self, mine: Machine, *, on_cpu: bool) -> Machine: ...


@dataclass(frozen=True)
class Prepared:
    """A job that passed every check, and its plan."""

    job: Job
    machine: Machine
    trace: Trace
    plan: Plan
    findings: list[Finding]
    """Warnings and notes; errors were raised."""
    run: RunDirectory | None = None
    """The run that continues; None: a new one is made."""
    is_elsewhere: bool = False
    """Whether the machine is another one than this: such a job is planned, never trained."""
    calibration: Calibration | None = None
    """What was measured of such a machine."""
    prepare_anew: Callable[[], Prepared] | None = None
    """The same with the recipe asked, where the plan was made from memory."""


def prepare(
    source: Source | None,
    overrides: Sequence[Override | str] = (),
    *,
    resume: str | None = None,
    accept_changes: bool = False,
    machine: Machine | None = None,
    is_elsewhere: bool = False,
    adapt: Callable[[Job, Machine], Job] | None = None,
    launcher: Launcher | None = None,
    ask_trace: AskTrace | None = None,
    is_fresh: bool = True,
    gather: Gather | None = None,
    nodes: int = 1,
    say: Callable[[str], None] = lambda text: None,
) -> Prepared:
    """Load, check and plan a job. `resume` names a run, a checkpoint, or `latest`; `adapt` fits the
    job to the machine before its devices are judged; `launcher` will train it, and
    begins meanwhile; `is_elsewhere` says that `machine` is not this one, and is not checked;
    `ask_trace` takes the place of `trace_recipe`; unless `is_fresh`, a plan may be made of what the
    recipe and torch answered before; `gather` makes one machine of this one and its other nodes,
    of which there are `nodes` in all; `say` is told what the recipe reports on its way."""
    read = read_job(source, overrides, resume, nodes=nodes, is_elsewhere=is_elsewhere)
    job, continued = read.job, read.continued
    if launcher is not None:
        with suppress(LauncherError):  # said when ranks are asked for
            known = continued.plan.devices.worker_env if continued is not None else {}
            launcher.start({**early_variables(), **known})
    machine, trace, found = _look(
        job,
        machine,
        is_elsewhere=is_elsewhere,
        # What continues must know the data as it is now.
        ask_trace=ask_trace
        or remembering(
            partial(trace_recipe, launcher=launcher, say=say),
            is_fresh=is_fresh or continued is not None,
        ),
        ask_torch=None if is_fresh else remembering_torch(),
        gather=gather,
    )
    if adapt is not None:
        job = adapt(job, machine)
    loaded = replace(read.loaded, job=job)
    findings = [*read.findings, *found, *_judge_gpus(loaded, machine, is_elsewhere=is_elsewhere)]
    raise_if_errors(findings)
    if trace is None:
        raise UserError(findings)
    findings += _about_weights(trace, is_needed=launcher is not None)
    job = job.model_copy(update={"options": trace.options})
    previous = continued.plan if continued is not None else None
    on_cpu = job.devices.cpu is not None
    calibration, problems = find_calibration(machine, "cpu" if on_cpu else None)
    findings += problems
    plan, choices = solve_plan(job, machine, trace, previous=previous, calibration=calibration)
    findings += choices
    if not is_fresh:
        plan = recall_comparison(plan, machine)
    if continued is not None:
        findings += resume_findings(continued.plan, plan, accept_changes=accept_changes)
        plan = continued.adopt(plan)
    raise_if_errors(findings)
    run = continued.run if continued else None
    prepared = Prepared(job, machine, trace, plan, findings, run, is_elsewhere, calibration)
    if launcher is None or all(finding.slug != "trace-remembered" for finding in findings):
        return prepared
    return replace(
        prepared,
        plan=plan.replace(is_from_memory=True),
        prepare_anew=partial(
            prepare,
            read.source,
            read.overrides,
            adapt=adapt,
            launcher=launcher,
            gather=gather,
            nodes=nodes,
        ),
    )


def other_machine(text: str | None) -> Machine | None:
    """The machine to plan for instead of this one; None for this one."""
    return None if text is None or text.strip() == "this" else parse_machine(text)


def _look(
    job: Job,
    machine: Machine | None,
    *,
    is_elsewhere: bool,
    ask_trace: AskTrace,
    ask_torch: AskTorch | None,
    gather: Gather | None,
) -> tuple[Machine, Trace | None, list[Finding]]:
    """Machine and recipe, asked at the same time: each costs an import of torch."""
    with ThreadPoolExecutor(2) as pool:
        here = "cuda" if may_have_cuda() else "mps" if sys.platform == "darwin" else "cpu"
        asked = wanted_precisions(job, accelerator=machine.accelerator if machine else here)
        tracing = pool.submit(ask_trace, job.recipe, job.options, asked)
        if machine is None:
            samples = cache_folder("samples") if job.loader.cache == "disk" else None
            machine = pool.submit(
                probe_machine, Path(job.output), samples=samples, ask=ask_torch
            ).result()
        trace, findings = tracing.result()
    wanted = wanted_on(job, machine)
    if trace is not None and not set(wanted) <= set(asked):  # a driver without a GPU, an odd card
        trace, findings = ask_trace(job.recipe, job.options, wanted)
    if is_elsewhere:
        return machine, trace, findings
    unfit = cannot_train(machine)
    if unfit:
        raise UserError(unfit, exit_code=ExitCode.MACHINE)
    if gather is not None:
        machine = gather(machine, on_cpu=job.devices.cpu is not None)
    return machine, trace, [*findings, *_relevant(check_machine(machine))]


def _judge_gpus(loaded: LoadedJob, machine: Machine, *, is_elsewhere: bool) -> list[Finding]:
    ids = [gpu.cuda_index for gpu in machine.visible_gpus if gpu.cuda_index is not None]
    return gpu_findings(
        loaded,
        ids,
        cuda_visible_devices=machine.cuda_visible_devices,
        where=f"`{machine.title}`" if is_elsewhere else "this machine",
    )


def _relevant(findings: list[Finding]) -> list[Finding]:
    """What a person who trains wants to hear about the machine: problems, not notes."""
    return [finding for finding in findings if finding.severity == "warning"]


def _about_weights(trace: Trace, *, is_needed: bool) -> list[Finding]:
    """Pretrained weights that are not there: whoever only plans can do without."""
    findings = list(trace.weights_findings)
    if is_needed:
        raise_if_errors(findings)
        return findings
    return [replace(f, severity="warning") if f.severity == "error" else f for f in findings]
