"""`phalanx verify`: is training on many ranks training on one? Both are run and compared."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli.options.job import GivenJob, with_job_options
from phalanx.errors import ExitCode
from phalanx.output import console

if TYPE_CHECKING:
    from phalanx.diagnose.compare import Comparison, Tally
    from phalanx.verbs.verify import PlannedComparison, Verification


@with_job_options
def verify(
    given: GivenJob,
    ranks: Annotated[
        int,
        typer.Option(
            "--ranks",
            help="Ranks to compare with one: GPUs, or CPU processes where there are less.",
        ),
    ] = 2,
    steps: Annotated[
        int, typer.Option("--steps", help="Optimizer steps to compare, from the first.")
    ] = 5,
    tolerance: Annotated[
        float,
        typer.Option("--tolerance", help="Largest difference allowed, relative to the norm."),
    ] = 1e-10,
    keep: Annotated[
        Path | None,
        typer.Option("--keep", metavar="DIR", help="Keep both run directories here."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
) -> int:
    """Prove that training on N ranks is training on one.

    The first steps of the job are trained on 1 and on N ranks in float64 and compared number by
    number: in the same micro-batches, then in those that `train` plans for 1 and for N ranks. Exit
    code 1 when they differ: the first thing that does is named, with its usual cause.

    Examples: phalanx verify digits | phalanx verify job.yaml --ranks 4 --steps 10 width=32
    """
    from phalanx.verbs.verify import verify_job

    with console.working("starting") as say:
        done = verify_job(
            given.job,
            given.overrides,
            ranks=ranks,
            steps=steps,
            tolerance=tolerance,
            keep=keep,
            say=say,
        )
    if as_json:
        record = done.to_json()
        record["findings"] = [*(note.to_json() for note in given.notes), *record["findings"]]
        console.say_json(record)
    else:
        _show(done)
        console.show_findings([*given.notes, *done.findings])
    return int(ExitCode.OK if done.passed else ExitCode.FAILED)


def _show(done: Verification) -> None:
    plan = done.plan
    ranks = plan.devices.ranks.value
    recipe = done.recipe.rpartition("/")[2]
    console.say(
        f"{recipe}: {done.steps} steps on 1 and on {ranks} ranks ({plan.devices.device.value}, "
        f"{plan.parallel.strategy.value}, {plan.numerics.precision.value}); "
        f"{plan.batch.accumulation.reason}"
    )
    _show_table(done.comparison)
    planned = done.planned
    if planned is not None:
        cuts = planned.cuts
        console.say(
            f"in the micro-batches that `train` plans, {cuts.one} on 1 rank and {cuts.many} on "
            f"{ranks} ranks{_conditions(planned)}"
        )
        _show_table(planned.comparison)
    _show_verdict(done)
    if done.kept is not None:
        console.say(f"kept: {done.kept}")


def _show_table(compared: Comparison) -> None:
    console.table(
        [_row(tally) for tally in compared.tallies.values()],
        header=("compared", "how many", "largest difference"),
        right=(1, 2),
    )
    for name in compared.unjudged:
        console.say(f"not judged: the weight of `{name}`: its gradient is zero but for rounding")


def _conditions(planned: PlannedComparison) -> str:
    synced = ", with sync_batchnorm" if planned.cuts.is_synced else ""
    quiet = ", dropout disabled" if planned.dropout else ""
    return f"{synced}{quiet}"


def _show_verdict(done: Verification) -> None:
    ranks, planned = done.plan.devices.ranks.value, done.planned
    tolerance = f"to {done.comparison.tolerance:g} of the norm, in float64"
    if done.passed:
        but = ", but for the masks of dropout" if planned is not None and planned.dropout else ""
        console.say(f"the same: training on {ranks} ranks is training on one, {tolerance}{but}")
    else:
        console.say(f"not the same, {tolerance}; compared up to the first difference")
    common = done.plan.batch.micro_batch_size.value
    if not done.comparison.is_same:
        console.say(
            f"the number of ranks makes the difference: both ran in micro-batches of {common}; "
            "those that `train` plans were not compared"
        )
    elif planned is None:
        console.say(
            f"compared: {done.steps} steps in micro-batches of {common}; `train` plans the same "
            "micro-batches for both"
        )
    elif done.passed:
        console.say(
            f"compared: {done.steps} steps in micro-batches of {common}, and in those of the plan, "
            f"{planned.cuts.one} and {planned.cuts.many}{_conditions(planned)}"
        )
    else:
        console.say(
            f"the micro-batches of the plan make the difference, {planned.cuts.one} on 1 rank and "
            f"{planned.cuts.many} on {ranks} ranks{_conditions(planned)}; in micro-batches of "
            f"{common} on both it is the same"
        )


def _row(tally: Tally) -> tuple[str, str, str]:
    if not tally.count:
        return tally.what, "-", "-"
    largest = f"{tally.largest:.1e}" if tally.largest else "equal"
    if math.isinf(tally.largest):
        largest = "differs"
    return tally.what, f"{tally.count} {tally.unit}", largest
