"""`phalanx slurm`: a job as a batch script, checked and submitted; then its state, logs and end."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from phalanx.cli.options import script as options
from phalanx.cli.options.job import GivenJob, with_job_options
from phalanx.cli.options.slurm import with_slurm_options
from phalanx.errors import Finding, UserError, errors_of, printable, short_path
from phalanx.output import console

if TYPE_CHECKING:
    from phalanx.places.slurm.job import SlurmRequest
    from phalanx.places.slurm.jobs import SlurmJob


class _SubmitsByDefault(TyperGroup):
    """`phalanx slurm JOB` is `phalanx slurm submit JOB`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["submit", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_SubmitsByDefault,
    no_args_is_help=True,
    help="Submit a job to Slurm: `phalanx slurm JOB --partition gpu --gpus-per-node 4`; follow it.",
)

_REFERENCE = typer.Argument(metavar="JOBID|RUN", help="The job's number, or its run or log.")


@app.command("submit")
@with_job_options
@with_slurm_options
def submit(
    given: GivenJob,
    slurm: dict[str, Any],
    print_only: bool,
) -> int:
    """Write a batch script for a job, check it and submit it; `phalanx slurm JOB` does the same.

    Before the time limit the run saves, is queued again and goes on.

    Examples: phalanx slurm digits --partition gpu --gpus-per-node 4 --time 4:00:00 | phalanx slurm
    job.yaml --partition gpu --print
    """
    from phalanx.places.slurm.job import SlurmRequest, value_findings
    from phalanx.places.slurm.request import (
        device_findings,
        gpus_of,
        load_job_elsewhere,
        name_from,
        words_of,
    )

    loaded, found = load_job_elsewhere(given.job, given.overrides)
    assert given.job is not None, "a job was loaded"
    request = SlurmRequest(
        name=loaded.job.name or name_from(given.job),
        words=words_of(given.job, given.overrides),
        output=loaded.job.output,
        python=sys.executable,
        **{**slurm, "gpus": slurm["gpus"] if slurm["gpus"] is not None else gpus_of(loaded)},
    )
    wrong = value_findings(request, os.environ)
    findings = [*given.notes, *found, *wrong, *device_findings(request, loaded)]
    if errors_of(findings):
        raise UserError(findings)
    return _submit(request, findings, loaded.job.devices.cpu, print_only=print_only)


@app.command("launch", context_settings=options.SETTINGS)
@with_slurm_options
def launch(
    script: options.Script,
    module: options.Module = False,
    cpu: options.Cpu = None,
    python: options.Python = None,
    max_restarts: Annotated[int | None, options.MAX_RESTARTS] = None,
    resume_with: options.ResumeWith = None,
    mixed_precision: options.MixedPrecision = None,
    gradient_accumulation: options.Accumulation = None,
    accelerate_config: options.AccelerateConfig = None,
    deepspeed: options.Deepspeed = None,
    output: options.Output = "runs",
    name: options.Name = None,
    *,
    slurm: dict[str, Any],
    print_only: bool,
) -> int:
    """Submit an unmodified training script, as `phalanx launch` runs it. Options come before it.

    Before the time limit its ranks get SIGTERM; it is queued again and told to go on.

    Examples: phalanx slurm launch --partition gpu --gpus-per-node 4 --resume-with "--resume auto"
    train.py --epochs 3
    """
    from phalanx.places.slurm.job import SlurmRequest, value_findings
    from phalanx.places.slurm.request import name_from, script_findings

    given = {
        "--cpu": cpu,
        "--python": python,
        "--max-restarts": max_restarts,
        "--resume-with": resume_with,
        "--mixed-precision": mixed_precision,
        "--gradient-accumulation": gradient_accumulation,
        "--accelerate-config": accelerate_config,
        "--deepspeed": deepspeed,
    }
    words = [f"{flag}={value}" for flag, value in given.items() if value is not None]
    stem = script[0].replace(".", "-") if module else script[0]
    request = SlurmRequest(
        name=name or name_from(stem),
        verb="launch",
        words=(*words, *(["--module"] if module else []), "--", *script),
        output=output,
        python=sys.executable,
        **{**slurm, "gpus": slurm["gpus"] or ("0" if cpu is not None else "1")},
    )
    findings = value_findings(request, os.environ)
    findings += script_findings(
        request,
        script=script[0],
        is_module=module,
        cpu=cpu,
        resume_with=resume_with,
        accelerate_config=accelerate_config,
    )
    if errors_of(findings):
        raise UserError(findings)
    return _submit(request, findings, cpu, print_only=print_only)


@app.command("status")
def status(reference: Annotated[str | None, _REFERENCE] = None) -> int:
    """Show the jobs that were submitted: Slurm's state, and how far the run is.

    Examples: phalanx slurm status | phalanx slurm status 42 | phalanx slurm status runs/digits_42
    """
    from phalanx.places.slurm.jobs import find_job, list_jobs, progress_of

    jobs = [find_job(reference)] if reference is not None else list_jobs()
    rows = [
        (job.id, job.name, job.state, job.ran, job.limit, progress_of(job), _reason(job))
        for job in jobs
    ]
    console.table(rows, header=("job", "name", "state", "ran", "limit", "run", "why"))
    return 0


@app.command("logs")
def logs(
    reference: Annotated[str | None, _REFERENCE] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", help="Of each file, the last.")] = 40,
) -> int:
    """Show the end of what a job has printed; the newest job when none is named.

    Examples: phalanx slurm logs | phalanx slurm logs 42 --lines 100
    """
    from phalanx.places.slurm.jobs import find_job

    for path in find_job(reference).logs:
        console.say(f"== {short_path(path)}", style="bold")
        if not path.is_file():
            console.say("not there yet: the job has not started")
            continue
        text = path.read_text(encoding="utf-8", errors="replace").splitlines()
        for line in text[-max(0, lines) :] if lines > 0 else []:
            console.say_text(f"{printable(line)}\n")
    return 0


@app.command("cancel")
def cancel(reference: Annotated[str, _REFERENCE]) -> int:
    """End a job, or take it out of the queue; its last checkpoint stands.

    Examples: phalanx slurm cancel 42 | phalanx slurm cancel runs/digits_42
    """
    from phalanx.places.slurm.jobs import cancel as cancel_job

    job = cancel_job(reference)
    console.say(f"job {job.id} is being ended")
    return 0


@app.command("requeue")
def requeue(reference: Annotated[str, _REFERENCE]) -> int:
    """Put a job into the queue again; its run goes on from its last checkpoint.

    Examples: phalanx slurm requeue 42
    """
    from phalanx.places.slurm.jobs import requeue as requeue_job

    job = requeue_job(reference)
    console.say(f"job {job.id} is queued again")
    return 0


def _reason(job: SlurmJob) -> str:
    return "" if job.reason.lower() in ("none", "") else job.reason


def _submit(
    request: SlurmRequest, findings: list[Finding], cpu: int | None, *, print_only: bool
) -> int:
    """Have Slurm judge a request whose values have been, and submit it."""
    from phalanx.places.slurm import checks, jobs
    from phalanx.places.slurm.job import batch_script
    from phalanx.places.slurm.request import checked_by_slurm

    if checks.has_slurm() or not print_only:
        try:
            with console.working("asking Slurm"):
                request, problems = checked_by_slurm(request, cpu)
        except UserError as error:
            if not print_only:
                raise
            problems = [replace(finding, severity="warning") for finding in error.findings]
        findings = [*findings, *problems]
    script = batch_script(request)
    if print_only:
        console.say_text(script)
    if errors_of(findings):
        raise UserError(findings)
    console.show_findings(findings)
    if print_only:
        return 0
    number = jobs.submit(script, request.name)
    _show_submitted(request, number)
    return 0


def _show_submitted(request: SlurmRequest, number: str) -> None:
    from phalanx.places.slurm.job import LOGS

    stem = f"{request.name}_{number}"
    tasks = "_TASK" if request.array else ""
    on = f", {request.nodes} nodes" if request.nodes > 1 else ""
    gpus = f"{request.gpus} GPUs per node" if request.gpu_count else "no GPUs"
    console.table(
        [
            ("job", f"{number}{on}, {gpus}, {request.cpus or 'the cluster decides on'} CPUs"),
            ("script", f"{LOGS}/{stem}.sbatch"),
            ("logs", f"{LOGS}/{stem}{tasks}.out and .err"),
            ("run", f"{request.output.rstrip('/')}/{stem}{tasks}"),
        ]
    )
    console.say_next(
        (f"phalanx slurm status {number}", "where it stands"),
        (f"phalanx slurm logs {number}", "what it has printed"),
        (f"phalanx slurm cancel {number}", "end it; it saves first"),
    )
