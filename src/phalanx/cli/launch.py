"""`phalanx launch`: run an unmodified training script on several ranks, follow it to the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli.nodes import (
    MEETING_S,
    NodeRankOption,
    NodesOption,
    RendezvousOption,
    TimeoutOption,
)

if TYPE_CHECKING:
    from phalanx.scripts.request import PreparedScript

# Options end where the script begins: all that follows is the script's.
SETTINGS = {"allow_interspersed_args": False}


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
    gpus: Annotated[
        str | None, typer.Option("--gpus", help="`all`, a number, or ids: `0,2,3`.")
    ] = None,
    cpu: Annotated[int | None, typer.Option("--cpu", help="Run on N CPU processes.")] = None,
    python: Annotated[
        str | None,
        typer.Option(
            "--python", metavar="PATH", help="The Python of another environment to run it with."
        ),
    ] = None,
    max_restarts: Annotated[
        int,
        typer.Option("--max-restarts", help="How often the ranks start again after one has died."),
    ] = 3,
    resume_with: Annotated[
        str | None,
        typer.Option(
            "--resume-with",
            metavar="ARGS",
            help='Arguments added from the second attempt on: "--resume_from_checkpoint auto".',
        ),
    ] = None,
    resumed: Annotated[
        bool,
        typer.Option("--resumed", help="Add them to the first attempt too: the script goes on."),
    ] = False,
    mixed_precision: Annotated[
        str | None,
        typer.Option("--mixed-precision", help="no, fp16, bf16 or fp8, for Accelerate scripts."),
    ] = None,
    gradient_accumulation: Annotated[
        int | None,
        typer.Option("--gradient-accumulation", help="Micro-batches per step, for Accelerate."),
    ] = None,
    accelerate_config: Annotated[
        str | None,
        typer.Option(
            "--accelerate-config", metavar="FILE", help="Settings of `accelerate config` (YAML)."
        ),
    ] = None,
    deepspeed: Annotated[
        str | None,
        typer.Option("--deepspeed", metavar="FILE", help="A ds_config.json, for Accelerate."),
    ] = None,
    results: Annotated[
        str | None,
        typer.Option(
            "--results",
            metavar="PATTERN",
            help="Files of results to read as they grow. Default: `runs/*/*/results.csv`, where "
            "Ultralytics writes.",
        ),
    ] = None,
    tensorboard: Annotated[
        bool,
        typer.Option(
            "--tensorboard/--no-tensorboard", help="Write TensorBoard files once a loss is seen."
        ),
    ] = True,
    output: Annotated[str, typer.Option("--output", help="Folder for run directories.")] = "runs",
    name: Annotated[str | None, typer.Option("--name", help="Name of the run directory.")] = None,
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet", help="Show rank 0's output only, without `[rank 0]`; logs keep all."
        ),
    ] = False,
    debug_comm: Annotated[
        bool,
        typer.Option("--debug-comm", help="NCCL and torch say what they do, into logs per rank."),
    ] = False,
    detach: Annotated[
        bool,
        typer.Option("--detach", help="Check, then go on without this terminal: `phalanx stop`."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check, show what would be run, then stop.")
    ] = False,
    nodes: NodesOption = 1,
    node_rank: NodeRankOption = None,
    rendezvous: RendezvousOption = None,
    meeting_timeout: TimeoutOption = MEETING_S,
) -> int:
    """Run an unmodified training script on every GPU, or on the devices you name.

    It finds all that torchrun and `accelerate launch` set. Options of launch come before it.

    Examples: phalanx launch --gpus 4 train.py --epochs 3 | phalanx launch --cpu 2 -m my.train
    """
    from pathlib import Path

    from phalanx.cli.detach import Leave, in_background
    from phalanx.cli.nodes import alone_only, launch_on_nodes
    from phalanx.cli.options.job import parse_gpus
    from phalanx.output import console
    from phalanx.output.script_view import run_script
    from phalanx.places.nodes.meeting import parse_rendezvous
    from phalanx.places.torchrun import refuse_inside_torchrun
    from phalanx.scripts.request import RESULTS, ScriptRequest, prepare_script

    refuse_inside_torchrun()
    asked = parse_rendezvous(nodes, node_rank, rendezvous, meeting_timeout)
    if asked is not None and detach:
        raise alone_only("--detach", asked)
    request = ScriptRequest(
        nodes=nodes,
        is_resumed=resumed,
        script=script[0],
        arguments=script[1:],
        is_module=module,
        gpus=parse_gpus(gpus) if gpus is not None else None,
        cpu=cpu,
        name=name,
        output=Path(output),
        python=python,
        max_restarts=max_restarts,
        resume_with=resume_with,
        mixed_precision=mixed_precision,
        gradient_accumulation=gradient_accumulation,
        accelerate_config=Path(accelerate_config) if accelerate_config else None,
        deepspeed=Path(deepspeed) if deepspeed else None,
        results=results or RESULTS,
        debug_comm=debug_comm,
        tensorboard=tensorboard,
    )

    def run(leave: Leave) -> int:
        prepared = prepare_script(request)
        console.show_findings(prepared.findings)
        if dry_run:
            _show_plan(prepared)
            return 0
        if asked is not None:
            return launch_on_nodes(asked, prepared, is_quiet=quiet)
        return run_script(prepared, is_quiet=quiet, on_open=leave).exit_code

    return in_background(run) if detach and not dry_run else run(lambda run: None)


def _show_plan(prepared: PreparedScript) -> None:
    import shlex

    from phalanx.output import console
    from phalanx.scripts.request import hide_secrets

    rows = [("command", shlex.join(hide_secrets(prepared.argv)))]
    if prepared.resume_words:
        rows.append(("resumes with", shlex.join(hide_secrets(prepared.resume_words))))
    rows.append(("ranks", f"{prepared.world} over {prepared.backend}, as a rule"))
    rows += [(f"rank {rank}", device) for rank, device in enumerate(prepared.devices)]
    rows += [("sets", f"{name}={value}") for name, value in sorted(prepared.variables.items())]
    console.table(rows)
