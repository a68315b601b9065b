"""`phalanx plan`: what training would do, every choice with its reason. Nothing is created."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from phalanx.cli.options import with_job_options

if TYPE_CHECKING:
    from phalanx.launch.prepare import Prepared

_SHOWN_RANKS = (1, 2, 4, 8)


@with_job_options
def plan(
    job: str | None,
    overrides: list[Any],
    notes: list[Any],
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> int:
    """Show what training would do, and why.

    Examples: phalanx plan digits | phalanx plan job.yaml --gpus 4 optimizer.lr=0.01
    """
    from phalanx.cli import console
    from phalanx.launch.prepare import prepare

    with console.working("looking at the machine and the recipe"):
        prepared = prepare(job, overrides)
    findings = [*notes, *prepared.findings]
    if as_json:
        console.say_json(
            {
                "plan": prepared.plan.to_json(),
                "findings": [finding.to_json() for finding in findings],
                "ranks": [row._asdict() for row in ranks_table(prepared)],
            }
        )
        return 0
    show_plan(prepared)
    console.show_findings(findings)
    return 0


def ranks_table(prepared: Prepared) -> list[Any]:
    """The same job on other numbers of GPUs."""
    from phalanx.planner.solve import on_ranks

    counts = sorted({*_SHOWN_RANKS, prepared.plan.ranks.value})
    return [on_ranks(prepared.job, prepared.trace, ranks) for ranks in counts]


def show_plan(prepared: Prepared) -> None:
    """Print the plan: choices with reasons, then the same job on other numbers of ranks."""
    from phalanx.cli import console

    plan = prepared.plan
    rows = [
        (
            name.removesuffix("_bytes").replace("_", " "),
            _show(decision.value, name),
            decision.reason,
        )
        for name, decision in plan.decisions().items()
        if decision.value is not None and (name != "gpus" or decision.value)
    ]
    console.table(rows, title=f"plan for {prepared.job.recipe}", header=("", "choice", "because"))
    console.table(
        [
            (
                f"{row.ranks}{'  <' if row.ranks == plan.ranks.value else ''}",
                f"{row.global_batch_size:,}",
                f"{row.micro_batch_size:,}",
                str(row.accumulation),
                f"{row.steps_per_epoch:,}",
                f"{row.lr:g}",
                f"{row.speedup:.2f}x",
            )
            for row in ranks_table(prepared)
        ],
        title="the same job on other numbers of ranks",
        header=("ranks", "global", "micro", "accum", "steps/epoch", "lr", "speed-up at most"),
        right=(0, 1, 2, 3, 4, 5, 6),
    )
    console.say("Time is not predicted yet.", style="dim")


def _show(value: Any, name: str) -> str:
    if name == "speedup":
        return f"{value:g}x"
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
