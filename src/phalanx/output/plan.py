"""A plan as tables: every choice with its reason, then the same job on other numbers of ranks."""

from __future__ import annotations

from typing import Any

from phalanx.errors import format_bytes, format_seconds
from phalanx.job.strategies import facts_of
from phalanx.machine.environment import show_variables
from phalanx.output import console
from phalanx.planner.schema.plan import Plan
from phalanx.prepare.plan import Prepared
from phalanx.verbs.plan import cost_of, ranks_table

_TITLES = {
    "comm_timeout_s": "communication timeout",
    "step_s": "step",
    "samples_per_s": "samples/s",
    "duration_s": "whole job",
    "energy_kwh": "energy, kWh",
    "process_bytes": "memory of process",
}


def show_plan(prepared: Prepared, price: float | None = None) -> None:
    """Print the plan: choices with reasons, then the same job on other numbers of ranks."""
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
    if plan.devices.environment:
        rows.append(
            ("environment", show_variables(plan.devices.environment), "set by you, for the ranks")
        )
    cost = cost_of(plan, price)
    if cost is not None and plan.predicted.forecast is not None:
        hours = f"{plan.predicted.forecast.gpu_hours:,.2f} GPU hours x {price:g}"
        low, high = (f"{value:,.2f}" for value in plan.predicted.forecast.interval(cost))
        rows.append(("cost", f"{cost:,.2f}", f"{hours}; {low} to {high}"))
    console.table(rows, title=f"plan for {prepared.job.recipe}", header=("", "choice", "because"))
    _show_ranks(prepared)
    _show_alternatives(plan)


def _show_ranks(prepared: Prepared) -> None:
    rows = ranks_table(prepared)
    is_timed = all(row.step_s is not None for row in rows)
    console.table(
        [
            (
                f"{row.ranks}{'  <' if row.ranks == prepared.plan.devices.ranks.value else ''}",
                row.strategy,
                f"{row.global_batch_size:,}",
                f"{row.micro_batch_size:,} x {row.accumulation}",
                f"{row.steps_per_epoch:,}",
                f"{row.lr:g}",
                *(
                    (
                        format_seconds(row.step_s or 0.0),
                        f"{row.samples_per_s:,.0f}",
                        f"{row.speedup:.2f}x",
                        f"{100 * row.efficiency:.0f} %",
                        format_seconds(row.duration_s or 0.0),
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
    if plan.predicted.alternatives:
        console.table(
            [
                (
                    other.choice,
                    f"{other.samples_per_s:,.0f}" if other.samples_per_s else "-",
                    format_bytes(other.memory_bytes) if other.memory_bytes else "-",
                    other.why_not,
                )
                for other in plan.predicted.alternatives
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
        return facts_of(plan.parallel.strategy.value).has_shard_groups
    if name == "comm_timeout_s":
        return plan.devices.backend.value != "none"
    if name == "sync_batchnorm":
        return plan.numerics.has_batchnorm
    return value is not None and (name != "gpus" or bool(value))


def _show_elsewhere(prepared: Prepared) -> None:
    """Say on top that nothing here was seen on the machine it is for."""
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
        return format_seconds(value)
    if name.endswith("_bytes"):
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
