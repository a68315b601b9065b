"""Options of a training script that is launched, here or in a Slurm job."""

from __future__ import annotations

from typing import Annotated

import typer

# Options end where the script begins: all that follows is the script's.
SETTINGS = {"allow_interspersed_args": False}

Script = Annotated[
    list[str],
    typer.Argument(
        metavar="SCRIPT ARGS", help="The script, or with -m the module, and its arguments."
    ),
]
Module = Annotated[
    bool, typer.Option("-m", "--module", help="SCRIPT is a module, as in `python -m`.")
]
Cpu = Annotated[int | None, typer.Option("--cpu", help="Run on N CPU processes of each machine.")]
Python = Annotated[
    str | None,
    typer.Option(
        "--python", metavar="PATH", help="The Python of another environment to run it with."
    ),
]
MAX_RESTARTS = typer.Option(
    "--max-restarts", help="How often the ranks start again after one has died."
)
ResumeWith = Annotated[
    str | None,
    typer.Option(
        "--resume-with",
        metavar="ARGS",
        help='Arguments added from the second attempt on: "--resume_from_checkpoint auto".',
    ),
]
MixedPrecision = Annotated[
    str | None,
    typer.Option("--mixed-precision", help="no, fp16, bf16 or fp8, for Accelerate scripts."),
]
Accumulation = Annotated[
    int | None,
    typer.Option("--gradient-accumulation", help="Micro-batches per step, for Accelerate."),
]
AccelerateConfig = Annotated[
    str | None,
    typer.Option(
        "--accelerate-config", metavar="FILE", help="Settings of `accelerate config` (YAML)."
    ),
]
Deepspeed = Annotated[
    str | None,
    typer.Option("--deepspeed", metavar="FILE", help="A ds_config.json, for Accelerate."),
]
Output = Annotated[str, typer.Option("--output", help="Folder for run directories.")]
Name = Annotated[str | None, typer.Option("--name", help="Name of the run directory.")]
