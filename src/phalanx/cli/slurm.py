"""`phalanx slurm`: a job as a batch script, checked and submitted; then its state, logs and end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from phalanx.cli.launch import SETTINGS
from phalanx.cli.options.job import with_job_options
from phalanx.cli.options.slurm import (
    AccountOption,
    ArrayOption,
    ConstraintOption,
    CpusOption,
    GpusOption,
    MemoryOption,
    NodesOption,
    PartitionOption,
    PrintOption,
    QosOption,
    RequeuesOption,
    SignalOption,
    TimeOption,
    submit_checked,
)
from phalanx.cli.slurm_launch import launch

if TYPE_CHECKING:
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
def submit(
    job: str | None,
    overrides: list[Any],
    notes: list[Any],
    partition: PartitionOption = None,
    gpus_per_node: GpusOption = None,
    nodes: NodesOption = 1,
    time: TimeOption = None,
    account: AccountOption = None,
    qos: QosOption = None,
    constraint: ConstraintOption = None,
    array: ArrayOption = None,
    cpus_per_task: CpusOption = None,
    mem: MemoryOption = None,
    signal_s: SignalOption = 120,
    max_requeues: RequeuesOption = 5,
    print_only: PrintOption = False,
) -> int:
    """Write a batch script for a job, check it and submit it; `phalanx slurm JOB` does the same.

    Before the time limit the run saves, is queued again and goes on.

    Examples: phalanx slurm digits --partition gpu --gpus-per-node 4 --time 4:00:00 | phalanx slurm
    job.yaml --partition gpu --print
    """
    import os
    import sys

    from phalanx.errors import UserError, errors_of
    from phalanx.places.slurm.job import SlurmRequest, value_findings
    from phalanx.places.slurm.request import (
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
    return submit_checked(request, findings, loaded.job.devices.cpu, print_only=print_only)


app.command("launch", context_settings=SETTINGS)(launch)


@app.command("status")
def status(reference: Annotated[str | None, _REFERENCE] = None) -> int:
    """Show the jobs that were submitted: Slurm's state, and how far the run is.

    Examples: phalanx slurm status | phalanx slurm status 42 | phalanx slurm status runs/digits_42
    """
    from phalanx.output import console
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
    from phalanx.errors import printable
    from phalanx.output import console
    from phalanx.output.console import short_path
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
    from phalanx.output import console
    from phalanx.places.slurm.jobs import cancel as cancel_job

    job = cancel_job(reference)
    console.say(f"job {job.id} is being ended")
    return 0


@app.command("requeue")
def requeue(reference: Annotated[str, _REFERENCE]) -> int:
    """Put a job into the queue again; its run goes on from its last checkpoint.

    Examples: phalanx slurm requeue 42
    """
    from phalanx.output import console
    from phalanx.places.slurm.jobs import requeue as requeue_job

    job = requeue_job(reference)
    console.say(f"job {job.id} is queued again")
    return 0


def _reason(job: SlurmJob) -> str:
    return "" if job.reason.lower() in ("none", "") else job.reason
