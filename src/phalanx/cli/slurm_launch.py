"""`phalanx slurm launch`: a training script of the user's own as a Slurm job."""

from __future__ import annotations

from typing import Annotated

import typer

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


def launch(
    script: Annotated[
        list[str],
        typer.Argument(
            metavar="SCRIPT ARGS", help="The script, or with -m the module, and its arguments."
        ),
    ],
    module: Annotated[
        bool, typer.Option("-m", "--module", help="SCRIPT is a module, as in `python -m`.")
    ] = False,
    cpu: Annotated[
        int | None, typer.Option("--cpu", help="Run on N CPU processes of a node.")
    ] = None,
    python: Annotated[
        str | None,
        typer.Option("--python", metavar="PATH", help="The Python to run the script with."),
    ] = None,
    max_restarts: Annotated[
        int | None, typer.Option("--max-restarts", help="As for `phalanx launch`: 3.")
    ] = None,
    resume_with: Annotated[
        str | None,
        typer.Option(
            "--resume-with",
            metavar="ARGS",
            help="Arguments with which the script goes on, also when it is queued again.",
        ),
    ] = None,
    mixed_precision: Annotated[
        str | None, typer.Option("--mixed-precision", help="As for `phalanx launch`.")
    ] = None,
    gradient_accumulation: Annotated[
        int | None, typer.Option("--gradient-accumulation", help="As for `phalanx launch`.")
    ] = None,
    accelerate_config: Annotated[
        str | None,
        typer.Option("--accelerate-config", metavar="FILE", help="As for `phalanx launch`."),
    ] = None,
    deepspeed: Annotated[
        str | None, typer.Option("--deepspeed", metavar="FILE", help="As for `phalanx launch`.")
    ] = None,
    output: Annotated[str, typer.Option("--output", help="Folder for run directories.")] = "runs",
    name: Annotated[str | None, typer.Option("--name", help="Name of the job.")] = None,
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
    """Submit an unmodified training script, as `phalanx launch` runs it. Options come before it.

    Before the time limit its ranks get SIGTERM; it is queued again and told to go on.

    Examples: phalanx slurm launch --partition gpu --gpus-per-node 4 --resume-with "--resume auto"
    train.py --epochs 3
    """
    import os
    import sys

    from phalanx.errors import UserError, errors_of
    from phalanx.places.slurm.job import SlurmRequest, value_findings
    from phalanx.places.slurm.request import name_from, script_findings

    options = {
        "--cpu": cpu,
        "--python": python,
        "--max-restarts": max_restarts,
        "--resume-with": resume_with,
        "--mixed-precision": mixed_precision,
        "--gradient-accumulation": gradient_accumulation,
        "--accelerate-config": accelerate_config,
        "--deepspeed": deepspeed,
    }
    words = [f"{flag}={value}" for flag, value in options.items() if value is not None]
    stem = script[0].replace(".", "-") if module else script[0]
    request = SlurmRequest(
        name=name or name_from(stem),
        verb="launch",
        words=(*words, *(["--module"] if module else []), "--", *script),
        output=output,
        python=sys.executable,
        partition=partition,
        nodes=nodes,
        gpus=gpus_per_node or ("0" if cpu is not None else "1"),
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
    return submit_checked(request, findings, cpu, print_only=print_only)
