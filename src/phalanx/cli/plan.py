"""`phalanx plan`: what training would do, every choice with its reason. Nothing is created."""

from __future__ import annotations

from typing import Annotated

import typer

from phalanx.cli.options.job import GivenJob, with_job_options
from phalanx.errors import Finding, UserError
from phalanx.output import console


@with_job_options
def plan(
    given: GivenJob,
    machine: Annotated[
        str | None,
        typer.Option(
            "--machine",
            metavar="WORDS",
            help="Plan for another machine: `8x A100-80`, `2 nodes x 8x H100, 400 Gb/s`, a "
            "machine.json or a run; `this` is the one at hand.",
        ),
    ] = None,
    why: Annotated[
        str | None,
        typer.Option("--why", metavar="KEY", help="Only this choice, and the job keys behind it."),
    ] = None,
    sweep: Annotated[
        str | None,
        typer.Option(
            "--sweep",
            metavar="KEY=V1,V2",
            help="One row per value of a job key, or per `machine`; `;` where values have commas.",
        ),
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="Ask the recipe again, also when its answer is remembered."),
    ] = False,
    price: Annotated[
        float | None,
        typer.Option("--price", min=0.0, help="Of one GPU for an hour, in any currency."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> int:
    """Show what training would do, and why; also for a machine that is not at hand.

    Examples: phalanx plan digits | phalanx plan job.yaml --gpus 4 optimizer.lr=0.01 |
    phalanx plan digits --machine "8x A100-80" | phalanx plan digits --sweep batch_size=32,64
    """
    from phalanx.codec import to_json
    from phalanx.output.plan import show_plan
    from phalanx.output.sweep import show_sweep
    from phalanx.output.why import show_why
    from phalanx.prepare.plan import other_machine
    from phalanx.verbs.plan import cost_of, ranks_table
    from phalanx.verbs.plan import plan as plan_job

    if why is not None and sweep is not None:
        raise _two_questions(why, sweep)
    other = other_machine(machine)
    if sweep is not None:
        return show_sweep(
            given.job,
            given.overrides,
            given.notes,
            sweep,
            machine=other,
            is_fresh=fresh,
            as_json=as_json,
        )
    with console.working("looking at the machine and the recipe") as say:
        prepared = plan_job(given.job, given.overrides, machine=other, is_fresh=fresh, say=say)
    findings = [*given.notes, *prepared.findings]
    if why is not None:
        show_why(prepared, why, as_json=as_json)
        return 0
    if as_json:
        console.say_json(
            {
                "plan": prepared.plan.to_json(),
                "findings": to_json(findings),
                "ranks": [row._asdict() for row in ranks_table(prepared)],
                "cost": cost_of(prepared.plan, price),
                "is_elsewhere": prepared.is_elsewhere,
                "machine": to_json(prepared.machine),
            }
        )
        return 0
    show_plan(prepared, price)
    console.show_findings(findings)
    return 0


def _two_questions(why: str, sweep: str) -> Exception:
    return UserError(
        Finding(
            slug="two-questions",
            what="--why is about one plan, --sweep makes several",
            why=f"--why {why}, --sweep {sweep}",
            fix=f"--why {why}, or --sweep {sweep}",
        )
    )
