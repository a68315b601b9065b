"""The options of Slurm."""

from __future__ import annotations

import functools
import inspect
from typing import Annotated, Any

import typer

from phalanx.cli.options.job import Command, parameter_of, with_parameters

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


def with_slurm_options(command: Command) -> Command:
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
    return with_parameters(wrapped, parameters)
