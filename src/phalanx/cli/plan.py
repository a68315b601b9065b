"""`phalanx plan`: what training would do, every choice with its reason. Nothing is created."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from phalanx.cli.options.job import with_job_options

if TYPE_CHECKING:
    from phalanx.planner.schema.plan import Plan
    from phalanx.prepare.prepare import Prepared

_TITLES = {
    "comm_timeout_s": "communication timeout",
    "step_s": "step",
    "samples_per_s": "samples/s",
    "duration_s": "whole job",
    "energy_kwh": "energy, kWh",
    "process_bytes": "memory of process",
}


@with_job_options
def plan(
    job: str | None,
    overrides: list[Any],
    notes: list[Any],
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
    from phalanx.output import console
    from phalanx.output.sweep import show_sweep
    from phalanx.output.why import show_why
    from phalanx.prepare.prepare import other_machine, prepare

    if why is not None and sweep is not None:
        raise _two_questions(why, sweep)
    other = other_machine(machine)
    if sweep is not None:
        return show_sweep(
            job, overrides, notes, sweep, machine=other, is_fresh=fresh, as_json=as_json
        )
    with console.working("looking at the machine and the recipe") as say:
        prepared = prepare(
            job, overrides, machine=other, is_elsewhere=other is not None, is_fresh=fresh, say=say
        )
    findings = [*notes, *prepared.findings]
    if why is not None:
        show_why(prepared, why, as_json=as_json)
        return 0
    if as_json:
        console.say_json(
            {
                "plan": prepared.plan.to_json(),
                "findings": [finding.to_json() for finding in findings],
                "ranks": [row._asdict() for row in ranks_table(prepared)],
                "cost": _cost(prepared.plan, price),
                "is_elsewhere": prepared.is_elsewhere,
                "machine": prepared.machine.to_json(),
            }
        )
        return 0
    show_plan(prepared, price)
    console.show_findings(findings)
    return 0


def _two_questions(why: str, sweep: str) -> Exception:
    from phalanx.errors import Finding, UserError

    return UserError(
        Finding(
            slug="two-questions",
            what="--why is about one plan, --sweep makes several",
            why=f"--why {why}, --sweep {sweep}",
            fix=f"--why {why}, or --sweep {sweep}",
        )
    )


def ranks_table(prepared: Prepared) -> list[Any]:
    """The same job on other numbers of GPUs."""
    from phalanx.planner.scaling import counts_of, scaling_table

    ranks = prepared.plan.ranks.value
    counts = counts_of(prepared.machine, ranks, is_elsewhere=prepared.is_elsewhere)
    return scaling_table(
        prepared.job, prepared.machine, prepared.trace, counts, prepared.calibration
    )


def _cost(plan: Plan, price: float | None) -> float | None:
    if price is None or plan.forecast is None:
        return None
    return round(plan.forecast.gpu_hours * price, 2)


def show_plan(prepared: Prepared, price: float | None = None) -> None:
    """Print the plan: choices with reasons, then the same job on other numbers of ranks."""
    from phalanx.machine.environment import show_variables
    from phalanx.output import console

    plan = prepared.plan
    if prepared.is_elsewhere:
        _show_elsewhere(prepared)
    rows = [
        (
            _TITLES.get(name, name.removesuffix("_bytes").replace("_", " ")),
            show_value(decision.value, name),
            decision.reason,
        )
        for name, decision in plan.decisions().items()
        if _is_shown(plan, name, decision.value)
    ]
    if plan.environment:
        rows.append(("environment", show_variables(plan.environment), "set by you, for the ranks"))
    cost = _cost(plan, price)
    if cost is not None and plan.forecast is not None:
        hours = f"{plan.forecast.gpu_hours:,.2f} GPU hours x {price:g}"
        low, high = (f"{value:,.2f}" for value in plan.forecast.interval(cost))
        rows.append(("cost", f"{cost:,.2f}", f"{hours}; {low} to {high}"))
    console.table(rows, title=f"plan for {prepared.job.recipe}", header=("", "choice", "because"))
    _show_ranks(prepared)
    _show_alternatives(plan)


def _show_ranks(prepared: Prepared) -> None:
    from phalanx.errors import format_seconds
    from phalanx.output import console

    rows = ranks_table(prepared)
    is_timed = all(row.step_s is not None for row in rows)
    console.table(
        [
            (
                f"{row.ranks}{'  <' if row.ranks == prepared.plan.ranks.value else ''}",
                row.strategy,
                f"{row.global_batch_size:,}",
                f"{row.micro_batch_size:,} x {row.accumulation}",
                f"{row.steps_per_epoch:,}",
                f"{row.lr:g}",
                *(
                    (
                        format_seconds(row.step_s),
                        f"{row.samples_per_s:,.0f}",
                        f"{row.speedup:.2f}x",
                        f"{100 * row.efficiency:.0f} %",
                        format_seconds(row.duration_s),
                    )
                    if is_timed
                    else (f"{row.speedup:.2f}x",)
                ),
            )
            for row in rows
        ],
        title="the same job on other numbers of ranks",
        header=(
            "ranks",
            "strategy",
            "global",
            "micro x accum",
            "steps/epoch",
            "lr",
            *(
                ("step", "samples/s", "speed-up", "efficiency", "whole job")
                if is_timed
                else ("speed-up at most",)
            ),
        ),
        right=(0, 2, 3, 4, 5, 6, 7, 8, 9, 10),
    )
    if not is_timed:
        why = prepared.trace.activations_unknown or "the device's rates are not known"
        console.say(f"Time is not predicted: {why}", style="dim")


def _show_alternatives(plan: Plan) -> None:
    from phalanx.errors import format_bytes
    from phalanx.output import console

    if plan.alternatives:
        console.table(
            [
                (
                    other["choice"],
                    f"{other['samples_per_s']:,.0f}" if other["samples_per_s"] else "-",
                    format_bytes(other["memory_bytes"]) if other["memory_bytes"] else "-",
                    other["why_not"],
                )
                for other in plan.alternatives
            ],
            title="considered",
            header=("choice", "samples/s", "memory", "why not"),
            right=(1, 2),
        )


def _is_shown(plan: Plan, name: str, value: Any) -> bool:
    """Whether a choice means anything in this plan; `--why` and `--json` have all of them."""
    if name == "nodes":
        return bool(value > 1)
    if name in ("shard_ranks", "build"):
        return plan.strategy.value == "fsdp"
    if name == "comm_timeout_s":
        return plan.backend.value != "none"
    if name == "sync_batchnorm":
        return plan.has_batchnorm
    return value is not None and (name != "gpus" or bool(value))


def _show_elsewhere(prepared: Prepared) -> None:
    """Say on top that nothing here was seen on the machine it is for."""
    from phalanx.output import console

    machine = prepared.machine
    console.say(f"for another machine: {machine.title}")
    console.say("  nothing was measured there; how long a sample takes to fetch is from here")
    if machine.assumed:
        console.say(f"  assumed: {'; '.join(machine.assumed)}")
    if machine.nodes > 1:
        speed = f"{machine.node_link_gbps:g} Gb/s" if machine.node_link_gbps else "unknown speed"
        console.say(f"  {machine.nodes} nodes, {speed} between them")
    console.say()


def show_value(value: Any, name: str) -> str:
    """A value of the plan or of the job as a person reads it."""
    if value is None:
        return "-"
    if name == "speedup":
        return f"{value:g}x"
    if name.endswith("_per_s"):
        return f"{value:,.0f}" if value >= 10 else f"{value:.3g}"
    if name.endswith("_s") and name != "save_every_s":
        from phalanx.errors import format_seconds

        return format_seconds(value)
    if name.endswith("_bytes"):
        from phalanx.errors import format_bytes

        return format_bytes(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return ",".join(str(item) for item in value)
    return str(value)
