"""The options of Slurm, and the way of a request into its queue: checked, shown, submitted."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phalanx.cli.options.job import parameter_of

if TYPE_CHECKING:
    from phalanx.errors import Finding
    from phalanx.places.slurm.job import SlurmRequest

# field of SlurmRequest -> (name of the option's value, type, option, default), in --help's order
_OPTIONS: dict[str, tuple[str, Any, Any, Any]] = {
    "partition": (
        "partition",
        str | None,
        typer.Option("--partition", help="Default: the cluster's own."),
        None,
    ),
    "gpus": (
        "gpus_per_node",
        str | None,
        typer.Option(
            "--gpus-per-node",
            metavar="N|TYPE:N",
            help="Default: as many as the job asks for, none with --cpu, else 1.",
        ),
        None,
    ),
    "nodes": (
        "nodes",
        int,
        typer.Option("--nodes", help="Machines; --gpus-per-node and --cpu are of each."),
        1,
    ),
    "time": (
        "time",
        str | None,
        typer.Option("--time", metavar="[DAYS-]HH:MM:SS", help="Limit of one turn on a node."),
        None,
    ),
    "account": ("account", str | None, typer.Option("--account", help="Who pays."), None),
    "qos": ("qos", str | None, typer.Option("--qos", help="Quality of service."), None),
    "constraint": (
        "constraint",
        str | None,
        typer.Option("--constraint", help="Features that a node must have."),
        None,
    ),
    "array": (
        "array",
        str | None,
        typer.Option("--array", metavar="0-3", help="One run per number; `seed={task}` uses it."),
        None,
    ),
    "cpus": (
        "cpus_per_task",
        int | None,
        typer.Option(
            "--cpus-per-task",
            help="CPUs of a node; default: the GPUs' share of them, with --cpu N N.",
        ),
        None,
    ),
    "memory": (
        "mem",
        str | None,
        typer.Option("--mem", metavar="64G", help="Memory of a node."),
        None,
    ),
    "signal_s": (
        "signal_s",
        int,
        typer.Option("--signal-s", help="Seconds before the time limit to save and queue again."),
        120,
    ),
    "max_requeues": (
        "max_requeues",
        int,
        typer.Option("--max-requeues", help="How often it may be queued again."),
        5,
    ),
}
_PRINT = typer.Option("--print", help="Show the batch script; nothing is submitted.")


def with_slurm_options(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the options of Slurm. It is called with `slurm`, fields of a `SlurmRequest` by
    name, and with `print_only`."""
    own = [
        parameter
        for parameter in inspect.signature(command, eval_str=True).parameters.values()
        if parameter.name not in ("slurm", "print_only")
    ]

    @functools.wraps(command)
    def wrapped(*arguments: Any, print_only: bool, **values: Any) -> int:
        slurm = {field: values.pop(name) for field, (name, *_) in _OPTIONS.items()}
        return command(*arguments, slurm=slurm, print_only=print_only, **values)

    parameters = [
        *own,
        *(
            parameter_of(name, Annotated[kind, option], default)
            for name, kind, option, default in _OPTIONS.values()
        ),
        parameter_of("print_only", Annotated[bool, _PRINT], False),
    ]
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapped


def submit_checked(
    request: SlurmRequest, findings: list[Finding], cpu: int | None, *, print_only: bool
) -> int:
    """Have Slurm judge a request whose values have been, and submit it."""
    from dataclasses import replace

    from phalanx.errors import UserError, errors_of
    from phalanx.output import console
    from phalanx.places.slurm import checks as slurm_checks
    from phalanx.places.slurm import jobs as slurm_jobs
    from phalanx.places.slurm.job import batch_script
    from phalanx.places.slurm.request import checked_by_slurm

    if slurm_checks.has_slurm() or not print_only:
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
    number = slurm_jobs.submit(script, request.name)
    _show_submitted(request, number)
    return 0


def _show_submitted(request: SlurmRequest, number: str) -> None:
    from phalanx.output import console
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
    console.say("next:")
    for verb, meaning in (
        ("status", "where it stands"),
        ("logs", "what it has printed"),
        ("cancel", "end it; it saves first"),
    ):
        console.say(f"  phalanx slurm {verb} {number}")
        console.say(f"      {meaning}", style="dim")
