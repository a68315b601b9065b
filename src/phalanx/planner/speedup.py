"""How much faster a plan is than one rank alone."""

from __future__ import annotations

from phalanx.planner.plan import Decision, Plan


def speedup_over(plan: Plan, alone: Plan) -> Decision[float]:
    """Throughput over that of one rank."""
    if plan.forecast is None or alone.forecast is None:
        return plan.speedup
    rate, single = plan.forecast.samples_per_s, alone.forecast.samples_per_s
    value, ranks = rate / single, plan.ranks.value
    low, high = speedup_interval(plan, alone)
    return Decision(
        round(value, 2),
        f"{rate:,.0f} samples/s on {ranks} ranks, {single:,.0f} on one: efficiency "
        f"{100 * value / ranks:.0f} %; {low:.2f} to {high:.2f}",
    )


def speedup_interval(plan: Plan, alone: Plan) -> tuple[float, float]:
    """What the speed-up lies within: how much ranks differ, and how fast they exchange, is least
    certain. An error in what one device computes is the same on both sides."""
    if plan.forecast is None or alone.forecast is None:
        return plan.speedup.value, plan.speedup.value
    batch, single = plan.global_batch_size.value, alone.forecast.samples_per_s
    slow, quick = (batch / step for step in (plan.forecast.at_worst(), plan.forecast.at_best()))
    return slow / single, quick / single
