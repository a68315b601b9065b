"""`phalanx estimate`: how long, on how many GPUs, and what that saves. Nothing is created."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli.options.job import GivenJob, whole_numbers, with_job_options
from phalanx.errors import Finding, UserError, format_seconds
from phalanx.output import console

if TYPE_CHECKING:
    from phalanx.verbs.estimate import Estimate

_STEPS = "5000,10000,20000"


@with_job_options
def estimate(
    given: GivenJob,
    gpus: Annotated[int | None, typer.Option("--gpus", help="How many GPUs.")] = None,
    gpu: Annotated[
        str | None,
        typer.Option("--gpu", metavar="NAME", help="Which ones, as `RTX 2080` or `A100-80`."),
    ] = None,
    dataset_size: Annotated[
        int | None, typer.Option("--dataset-size", help="Samples, instead of the recipe's data.")
    ] = None,
    steps: Annotated[
        str, typer.Option("--steps", metavar="N,N", help="Steps to compare one GPU and all for.")
    ] = _STEPS,
    step_time: Annotated[
        float | None,
        typer.Option("--step-time", help="Seconds of one GPU's step, where it was measured."),
    ] = None,
    price: Annotated[
        float | None, typer.Option("--price", help="Of one GPU for an hour, in any currency.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the estimate as JSON.")] = False,
) -> int:
    """Say how long a job takes on some number of GPUs, and what that saves against one.

    Examples: phalanx estimate digits --dataset-size 1000 --epochs 100 --gpus 16 --gpu "RTX 2080" |
    phalanx estimate digits --gpus 2 --gpu "RTX 4090" --steps 5000,20000 --step-time 0.5
    """
    from phalanx.verbs.estimate import estimate_job

    counts = _parse_steps(steps)
    with console.working("looking at the recipe"):
        found, findings = estimate_job(
            given.job or "digits",
            given.overrides,
            gpus=gpus,
            gpu=gpu,
            dataset_size=dataset_size,
            step_time=step_time,
            steps=counts,
            price=price,
        )
    if as_json:
        console.say_json(found.to_json())
        return 0
    _show(found)
    console.show_findings([*given.notes, *findings])
    return 0


def _show(found: Estimate) -> None:
    low, high = (format_seconds(value) for value in found.interval(found.total_s))
    unit = "GPU" if found.device == "cuda" else "rank"
    per_rank = f"{found.global_batch_size / found.ranks:g} per {unit}"
    rows = [
        ("recipe", found.recipe),
        ("machine", found.machine),
        ("data set", f"{found.num_samples:,} samples"),
        ("epochs", f"{found.epochs:g}, {found.total_steps:,} steps"),
        (f"{unit}s", f"{found.ranks}, {found.strategy}"),
        ("batch", f"{found.global_batch_size:,}, {per_rank}"),
        (
            "step",
            f"{format_seconds(found.step_s)}, on one {unit} {format_seconds(found.one_step_s)}",
        ),
        ("efficiency", f"{100 * found.efficiency:.0f} %"),
        ("speed-up", f"{found.speedup:.2f}x"),
        ("time per epoch", format_seconds(found.epoch_s)),
        ("total", f"{format_seconds(found.total_s)}, between {low} and {high}"),
        (f"{unit} hours", f"{found.gpu_hours:,.2f}"),
    ]
    if found.energy_kwh is not None:
        rows.append(("energy", f"at most {found.energy_kwh:,.3g} kWh"))
    if found.cost is not None:
        rows.append(("cost", f"{found.cost:,.2f} at {found.price:g} for each {unit} and hour"))
    console.table(rows)
    console.say(f"  from: {found.source}", style="dim")
    shown = 4 if found.ranks > 1 else 2
    console.table(
        [
            (
                f"{row.steps:,}",
                format_seconds(row.one_s),
                format_seconds(row.all_s),
                format_seconds(row.saved_s) if row.saved_s > 0 else "-",
            )[:shown]
            for row in found.saved
        ],
        title="time for some number of steps of this batch",
        header=("steps", f"1 {unit}", f"{found.ranks} {unit}s", "saved")[:shown],
        right=(0, 1, 2, 3),
    )


def _parse_steps(text: str) -> list[int]:
    if (numbers := whole_numbers(text)) is not None:
        return numbers
    raise UserError(
        Finding(
            slug="estimate-numbers",
            what=f"--steps `{text}` is no list of whole numbers",
            why="read from the command line",
            fix=f"--steps {_STEPS}",
        )
    )
