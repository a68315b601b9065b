"""How much faster a plan is than one rank alone."""

from __future__ import annotations

from phalanx.errors import Finding
from phalanx.planner.schema.plan import Decision, Plan


def speedup_over(plan: Plan, alone: Plan) -> Decision[float]:
    """Throughput over that of one rank."""
    if plan.predicted.forecast is None or alone.predicted.forecast is None:
        return plan.predicted.speedup
    rate, single = plan.predicted.forecast.samples_per_s, alone.predicted.forecast.samples_per_s
    value, ranks = rate / single, plan.devices.ranks.value
    low, high = speedup_interval(plan, alone)
    return Decision(
        round(value, 2),
        f"{rate:,.0f} samples/s on {ranks} ranks, {single:,.0f} on one: efficiency "
        f"{100 * value / ranks:.0f} %; {low:.2f} to {high:.2f}",
    )


def speedup_interval(plan: Plan, alone: Plan) -> tuple[float, float]:
    """What the speed-up lies within: how much ranks differ, and how fast they exchange, is least
    certain. An error in what one device computes is the same on both sides."""
    if plan.predicted.forecast is None or alone.predicted.forecast is None:
        return plan.predicted.speedup.value, plan.predicted.speedup.value
    batch, single = plan.batch.global_batch_size.value, alone.predicted.forecast.samples_per_s
    slow, quick = (
        batch / step
        for step in (plan.predicted.forecast.at_worst(), plan.predicted.forecast.at_best())
    )
    return slow / single, quick / single


def slower_together(plan: Plan, alone: Plan) -> list[Finding]:
    """GPUs that are slower together than one of them, whatever is uncertain about it. Ranks on a
    CPU are for trying what several do."""
    together, single = plan.predicted.forecast, alone.predicted.forecast
    _, at_best = speedup_interval(plan, alone)
    if plan.devices.device.value != "cuda" or together is None or single is None or at_best >= 1:
        return []
    bound = {
        "device": "the device computes",
        "host": "the host starts operators one by one, which a CUDA graph on one GPU spares it",
        "communication": "gradients are exchanged",
        "data": "the loader fetches samples",
    }[together.bottleneck]
    is_compiling_left = together.bottleneck == "host" and plan.execution.compile.value == "off"
    return [
        Finding(
            slug="slower-together",
            what=f"{plan.devices.ranks.value} ranks are predicted to be slower than one",
            why=f"{together.samples_per_s:,.0f} samples/s on {plan.devices.ranks.value}, "
            f"{single.samples_per_s:,.0f} on one; most of a step {bound}",
            fix="--gpus 1" + (", or compile=on" if is_compiling_left else ""),
            severity="warning",
        )
    ]
