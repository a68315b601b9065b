"""`phalanx slurm`: a job as a batch script, checked and submitted; then its state, logs and end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from phalanx.cli.options import with_job_options

if TYPE_CHECKING:
    from phalanx.launch.slurm import SlurmRequest
    from phalanx.launch.slurm_jobs import SlurmJob


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
def submit(
    job: str | None,
    overrides: list[Any],
    notes: list[Any],
    partition: Annotated[
        str | None, typer.Option("--partition", help="Default: the cluster's own.")
    ] = None,
    gpus_per_node: Annotated[
        str | None,
        typer.Option(
            "--gpus-per-node",
            metavar="N|TYPE:N",
            help="Default: as many as the job asks for, none with --cpu, else 1.",
        ),
    ] = None,
    nodes: Annotated[
        int, typer.Option("--nodes", help="Machines; --gpus-per-node and --cpu are of each.")
    ] = 1,
    time: Annotated[
        str | None,
        typer.Option("--time", metavar="[DAYS-]HH:MM:SS", help="Limit of one turn on a node."),
    ] = None,
    account: Annotated[str | None, typer.Option("--account", help="Who pays.")] = None,
    qos: Annotated[str | None, typer.Option("--qos", help="Quality of service.")] = None,
    constraint: Annotated[
        str | None, typer.Option("--constraint", help="Features that a node must have.")
    ] = None,
    array: Annotated[
        str | None,
        typer.Option("--array", metavar="0-3", help="One run per number; `seed={task}` uses it."),
    ] = None,
    cpus_per_task: Annotated[
        int | None,
        typer.Option(
            "--cpus-per-task",
            help="CPUs of a node; default: the GPUs' share of them, with --cpu N N.",
        ),
    ] = None,
    mem: Annotated[
        str | None, typer.Option("--mem", metavar="64G", help="Memory of a node.")
    ] = None,
    signal_s: Annotated[
        int,
        typer.Option("--signal-s", help="Seconds before the time limit to save and queue again."),
    ] = 120,
    max_requeues: Annotated[
        int, typer.Option("--max-requeues", help="How often it may be queued again.")
    ] = 5,
    print_only: Annotated[
        bool, typer.Option("--print", help="Show the batch script; nothing is submitted.")
    ] = False,
) -> int:
    """Write a batch script for a job, check it and submit it; `phalanx slurm JOB` does the same.

    Before the time limit the run saves, is queued again and goes on.

    Examples: phalanx slurm digits --partition gpu --gpus-per-node 4 --time 4:00:00 | phalanx slurm
    job.yaml --partition gpu --print
    """
    import os
    import sys
    from dataclasses import replace

    from phalanx.cli import console
    from phalanx.errors import UserError, errors_of
    from phalanx.launch import slurm_checks, slurm_jobs
    from phalanx.launch.slurm import SlurmRequest, batch_script, value_findings
    from phalanx.launch.slurm_request import (
        checked_by_slurm,
        device_findings,
        gpus_of,
        load_job_elsewhere,
        name_from,
        words_of,
    )

    loaded, found = load_job_elsewhere(job, overrides)
    assert job is not None, "a job was loaded"
    request = SlurmRequest(
        name=loaded.job.name or name_from(job),
        words=words_of(job, overrides),
        output=loaded.job.output,
        python=sys.executable,
        partition=partition,
        nodes=nodes,
        gpus=gpus_per_node if gpus_per_node is not None else gpus_of(loaded),
        cpus=cpus_per_task,
        memory=mem,
        time=time,
        account=account,
        qos=qos,
        constraint=constraint,
        array=array,
        signal_s=signal_s,
        max_requeues=max_requeues,
    )
    wrong = value_findings(request, os.environ)
    findings = [*notes, *found, *wrong, *device_findings(request, loaded)]
    if errors_of(findings):
        raise UserError(findings)
    if slurm_checks.has_slurm() or not print_only:
        try:
            with console.working("asking Slurm"):
                request, problems = checked_by_slurm(request, loaded)
        except UserError as error:
            if not print_only:
                raise
            problems = [replace(finding, severity="warning") for finding in error.findings]
        findings += problems
    script = batch_script(request)
    if print_only:
        console.say_text(script)
    if errors_of(findings):
        raise UserError(findings)
    console.show_findings(findings)
    if print_only:
        return 0
    number = slurm_jobs.submit(script, request.name)
    _show_submitted(request, number)
    return 0


@app.command("status")
def status(reference: Annotated[str | None, _REFERENCE] = None) -> int:
    """Show the jobs that were submitted: Slurm's state, and how far the run is.

    Examples: phalanx slurm status | phalanx slurm status 42 | phalanx slurm status runs/digits_42
    """
    from phalanx.cli import console
    from phalanx.launch.slurm_jobs import find_job, list_jobs, progress_of

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
    from phalanx.cli import console
    from phalanx.cli.console import short_path
    from phalanx.launch.slurm_jobs import find_job

    for path in find_job(reference).logs:
        console.say(f"== {short_path(path)}", style="bold")
        if not path.is_file():
            console.say("not there yet: the job has not started")
            continue
        text = path.read_text(encoding="utf-8", errors="replace").splitlines()
        for line in text[-max(0, lines) :] if lines > 0 else []:
            console.say("".join(c if c.isprintable() or c == "\t" else " " for c in line))
    return 0


@app.command("cancel")
def cancel(reference: Annotated[str, _REFERENCE]) -> int:
    """End a job, or take it out of the queue; its last checkpoint stands.

    Examples: phalanx slurm cancel 42 | phalanx slurm cancel runs/digits_42
    """
    from phalanx.cli import console
    from phalanx.launch.slurm_jobs import cancel as cancel_job

    job = cancel_job(reference)
    console.say(f"job {job.id} is being ended")
    return 0


@app.command("requeue")
def requeue(reference: Annotated[str, _REFERENCE]) -> int:
    """Put a job into the queue again; its run goes on from its last checkpoint.

    Examples: phalanx slurm requeue 42
    """
    from phalanx.cli import console
    from phalanx.launch.slurm_jobs import requeue as requeue_job

    job = requeue_job(reference)
    console.say(f"job {job.id} is queued again")
    return 0


def _reason(job: SlurmJob) -> str:
    return "" if job.reason.lower() in ("none", "") else job.reason


def _show_submitted(request: SlurmRequest, number: str) -> None:
    from phalanx.cli import console
    from phalanx.launch.slurm import LOGS

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
    console.say("next:")
    for verb, meaning in (
        ("status", "where it stands"),
        ("logs", "what it has printed"),
        ("cancel", "end it; it saves first"),
    ):
        console.say(f"  phalanx slurm {verb} {number}")
        console.say(f"      {meaning}", style="dim")
