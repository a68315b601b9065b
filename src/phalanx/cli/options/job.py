"""The options that `train`, `plan`, `verify` and `bench` share: each sets keys of the job."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phalanx.errors import Finding, UserError

if TYPE_CHECKING:  # takes a third of a second to import
    from phalanx.job import Override

Command = Callable[..., int]


@dataclass(frozen=True)
class GivenJob:
    """A job as the command line names it."""

    job: str | None
    overrides: list[Override | str]
    notes: list[Finding]
    """About the meaning of options."""


_JOB = typer.Argument(help="A job file, a recipe's name, or your own `file.py:Class`.")
_OVERRIDES = typer.Argument(
    metavar="KEY=VALUE", help="Job keys (`optimizer.lr=0.01`) and options of the recipe."
)

GPUS = typer.Option("--gpus", help="`all`, a number, or ids: `0,2,3`.")
CPU = typer.Option("--cpu", help="On N CPU processes.")

# Of what was trained: `evaluate` and `export`.
OPTIONS = typer.Argument(metavar="KEY=VALUE", help="Options of the recipe and job keys.")
RUNS = typer.Option("--output", help="Folder for run directories.")
CHECKPOINT = typer.Option(
    "--checkpoint", metavar="best|latest|N", help="Of a run: `best`, `latest` or a step."
)
WEIGHTS = typer.Option(
    "--weights",
    metavar="raw|average",
    help="The weights or their average; default: what training evaluated.",
)
RECIPE_OF_WEIGHTS = typer.Option(
    "--recipe",
    metavar="NAME",
    help="The recipe of weights that do not say it, or where it is on this machine.",
)

# name -> (type, option); the order is the order in --help.
_OPTIONS: dict[str, tuple[Any, Any]] = {
    "config": (
        str | None,
        typer.Option("--config", metavar="PRESET", help="A preset of the recipe: `preset=PRESET`."),
    ),
    "gpus": (str | None, GPUS),
    "cpu": (int | None, typer.Option("--cpu", help="Train on N CPU processes.")),
    "backend": (
        str | None,
        typer.Option("--backend", help="auto, nccl or gloo: how ranks talk."),
    ),
    "comm_timeout": (
        float | None,
        typer.Option(
            "--comm-timeout", metavar="SECONDS", help="How long a rank waits for the others."
        ),
    ),
    "epochs": (int | None, typer.Option("--epochs", help="Passes over the data.")),
    "steps": (int | None, typer.Option("--steps", help="Optimizer steps, instead of epochs.")),
    "batch_size": (
        int | None,
        typer.Option(
            "--batch-size",
            "--batch",
            help="Global batch; together with --gradient-accumulation the batch per GPU.",
        ),
    ),
    "gradient_accumulation": (
        int | None,
        typer.Option("--gradient-accumulation", help="Micro-batches added up per step."),
    ),
    "imgsz": (
        int | None,
        typer.Option("--imgsz", metavar="PIXELS", help="The recipe's option `image_size`."),
    ),
    "lr": (float | None, typer.Option("--lr", "--learning-rate", help="Learning rate.")),
    "seed": (int | None, typer.Option("--seed", help="Seed of everything random.")),
    "precision": (
        str | None,
        typer.Option("--precision", help="auto, fp32, tf32, bf16, fp16 or fp64."),
    ),
    "fp16": (bool | None, typer.Option("--fp16", help="The same as `--precision fp16`.")),
    "bf16": (bool | None, typer.Option("--bf16", help="The same as `--precision bf16`.")),
    "amp": (
        bool | None,
        typer.Option(
            "--amp", help="Mixed precision, bf16 or fp16 by the GPU: what `auto` is anyway."
        ),
    ),
    "strategy": (
        str | None,
        typer.Option("--strategy", help="auto, single, ddp, fsdp or deepspeed."),
    ),
    "fsdp": (
        bool | None,
        typer.Option("--fsdp", help="Spread the model over the ranks: `--strategy fsdp`."),
    ),
    "activation_checkpointing": (
        str | None,
        typer.Option(
            "--activation-checkpointing",
            help="auto, on or off: recompute activations in backward instead of keeping them.",
        ),
    ),
    "fast": (
        str | None,
        typer.Option(
            "--fast",
            help="auto or off: compiled code, CUDA graphs and channels last where they pay.",
        ),
    ),
    "cache": (
        str | None,
        typer.Option(
            "--cache",
            metavar="[ram|disk|off]",
            help="Keep samples in memory or on disk once they are decoded; alone it means ram.",
        ),
    ),
    "deepspeed": (
        str | None,
        typer.Option(
            "--deepspeed", metavar="FILE", help="Train with DeepSpeed as its JSON file says."
        ),
    ),
    "save_every": (
        tuple[float, str] | None,
        typer.Option("--save-every", help="`500 steps`, `2 epochs` or `10 minutes`."),
    ),
    "stop_after": (
        tuple[float, str] | None,
        typer.Option("--stop-after", help="Stop early, save, exit 75: `60 minutes`."),
    ),
    "output": (str | None, typer.Option("--output", help="Folder for run directories.")),
    "name": (str | None, typer.Option("--name", help="Name of the run directory.")),
}

_KEYS = {
    "config": "preset",
    "cpu": "devices.cpu",
    "backend": "devices.backend",
    "comm_timeout": "devices.comm_timeout_s",
    "imgsz": "image_size",
    "lr": "optimizer.lr",
    "cache": "loader.cache",
    "deepspeed": "deepspeed.config",
    "batch_size": "global_batch_size",
    "save_every": "checkpoint.every",
}
# An option also takes back what the file says the other way.
_INSTEAD = {
    "gpus": "devices.cpu",
    "cpu": "devices.gpus",
    "epochs": "steps",
    "steps": "epochs",
    "batch_size": "batch_per_gpu",
}


def with_job_options(command: Command) -> Command:
    """Give a command the job argument, the overrides and the shared options.

    The command is called as `command(given, **its_own_options)` with a `GivenJob`. An option of its
    own takes the place of a shared one of the same name; an argument of its own comes before the
    job."""
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    shared = {name: o for name, o in _OPTIONS.items() if name not in {p.name for p in own}}
    own = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
    first = [p for p in own if type(p.annotation.__metadata__[0]) is type(_JOB)]

    @functools.wraps(command)
    def wrapped(job: str | None, overrides: list[str] | None, **values: Any) -> int:
        given = {name: values.pop(name) for name in shared}
        given = {name: value for name, value in given.items() if value is not None}
        job, words = name_and_overrides(job, overrides)
        collected, notes = collect_overrides(given)
        return command(GivenJob(job, [*collected, *words], notes), **values)

    parameters = [
        *first,
        parameter_of("job", Annotated[str | None, _JOB], None),
        parameter_of("overrides", Annotated[list[str] | None, _OVERRIDES], None),
        *(
            parameter_of(name, Annotated[kind, option], None)
            for name, (kind, option) in shared.items()
        ),
        *(p for p in own if p not in first),
    ]
    return with_parameters(wrapped, parameters)


def with_parameters(command: Command, parameters: list[inspect.Parameter]) -> Command:
    """Let typer see these parameters of a command, instead of its own."""
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def name_and_overrides(
    name: str | None, overrides: list[str] | None
) -> tuple[str | None, list[str]]:
    """Return what is named first and the overrides; `train --resume RUN epochs=3` names no job."""
    words = overrides or []
    return (None, [name, *words]) if name is not None and "=" in name else (name, words)


def parameter_of(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    """Return an option of a command that is put together."""
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default
    )


def collect_overrides(given: dict[str, Any]) -> tuple[list[Override | str], list[Finding]]:
    """Overrides of the job from the options that were given, and notes about their meaning."""
    from phalanx.job import Override

    notes: list[Finding] = []
    overrides: list[Override | str] = []

    def flag(name: str) -> str:
        return "--" + name.replace("_", "-")

    for name, value in given.items():
        key, typed = _KEYS.get(name, name), value
        if name == "fsdp":
            _refuse_two_strategies(given)
            key, typed = "strategy", "fsdp"
        elif name in ("fp16", "bf16"):
            _refuse_two_precisions(given)
            key, typed = "precision", name
        elif name == "amp":
            if {"fp16", "bf16", "precision"} & given.keys():
                continue  # which says more
            key, typed = "precision", "auto"
        elif name == "gpus":
            key, typed = "devices.gpus", parse_gpus(value)
        elif name in ("save_every", "stop_after"):
            typed = f"{value[0]:g} {value[1]}"
        elif name == "batch_size" and "gradient_accumulation" in given:
            key = "batch_per_gpu"
            notes.append(_per_gpu_note(value, given["gradient_accumulation"], given))
        instead = "global_batch_size" if key == "batch_per_gpu" else _INSTEAD.get(name)
        if instead is not None and instead.rpartition(".")[2] not in given:
            overrides.append(Override(instead, None, flag(name)))
        if name == "deepspeed" and "strategy" not in given:
            overrides.append(Override("strategy", "deepspeed", flag(name)))
        overrides.append(Override(key, typed, flag(name)))
    return overrides, notes


def _refuse_two_strategies(given: dict[str, Any]) -> None:
    other = "deepspeed" if "deepspeed" in given else given.get("strategy", "fsdp")
    if other not in ("fsdp", "auto"):
        flag = f"--strategy {other}" if "strategy" in given else "--deepspeed"
        raise UserError(
            Finding(
                slug="two-strategies",
                what=f"--fsdp and {flag} ask for two strategies",
                why="both are on the command line; a run has one",
                fix=f"--fsdp, or {flag}",
            )
        )


def _refuse_two_precisions(given: dict[str, Any]) -> None:
    flags = [f"--{name}" for name in ("fp16", "bf16") if name in given]
    if "precision" in given:
        flags.append(f"--precision {given['precision']}")
    if len(flags) > 1:
        raise UserError(
            Finding(
                slug="two-precisions",
                what=f"{' and '.join(flags)} ask for two precisions",
                why="both are on the command line; a run has one",
                fix=f"{flags[0]}, or {flags[1]}",
            )
        )


def _count_ranks(given: dict[str, Any]) -> int | None:
    """How many ranks the options say; None when that is left to the machine."""
    if "cpu" in given:
        return int(given["cpu"])
    gpus = parse_gpus(given["gpus"]) if "gpus" in given else None
    if isinstance(gpus, list):
        return len(gpus)
    return gpus if isinstance(gpus, int) else None


def whole_numbers(text: str) -> list[int] | None:
    """`8,16` -> [8, 16]; None if there is another word, or none."""
    words = [word.strip().replace("_", "") for word in text.split(",") if word.strip()]
    is_right = words and all(word.lstrip("-").isdecimal() for word in words)
    return [int(word) for word in words] if is_right else None


def parse_gpus(text: str) -> Any:
    """`all` -> "all", `4` -> 4, `0,2` and `0,` -> ids; anything else is judged by the schema."""
    if "," in text:
        parts = [part.strip() for part in text.split(",") if part.strip()]
        return [int(part) if part.isdecimal() else part for part in parts]
    return int(text) if text.lstrip("-").isdecimal() else text


def _per_gpu_note(batch: int, accumulation: int, given: dict[str, Any]) -> Finding:
    ranks = _count_ranks(given)
    unit = "CPU process" if "cpu" in given else "GPU"
    product = f"{batch} x {accumulation} x the number of GPUs"
    if ranks is not None:
        plural = "" if ranks == 1 else "es" if "cpu" in given else "s"
        total = batch * accumulation * ranks
        product = f"{batch} x {accumulation} x {ranks} {unit}{plural} = {total} is the global batch"
    return Finding(
        slug="batch-per-gpu",
        what=f"--batch-size {batch} is per {unit} here: {product}",
        why="it was given together with --gradient-accumulation",
        fix=f"for a global batch of {batch} leave --gradient-accumulation out",
        severity="note",
    )
