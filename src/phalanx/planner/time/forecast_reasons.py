"""A forecast as choices of the plan: each number with its arithmetic and its interval."""

from __future__ import annotations

from phalanx.errors import format_seconds
from phalanx.planner.schema.forecast import Forecast
from phalanx.planner.schema.plan import Decision, Plan


def with_forecast(plan: Plan, forecast: Forecast | None) -> Plan:
    """The plan with the times that are predicted for it, each with its arithmetic and interval."""
    if forecast is None:
        return plan
    low, high = (format_seconds(value) for value in forecast.interval(forecast.step_s))
    parts = [f"compute {format_seconds(forecast.compute_s)}"]
    if plan.devices.ranks.value > 1:
        hidden = forecast.exchange_s - forecast.exposed_s
        parts.append(
            f"communication {format_seconds(forecast.exposed_s)} exposed"
            + (f" ({format_seconds(hidden)} hidden)" if hidden > 0 else "")
        )
        parts.append(f"the slowest rank {format_seconds(forecast.waiting_s)}")
    parts.append(f"data {format_seconds(forecast.data_s)}")
    bound = {
        "device": "the device computes all the time",
        "host": f"the host starts operators for {format_seconds(forecast.host_s)}, the device "
        f"computes for {format_seconds(forecast.device_s)}",
        "communication": "mostly communication",
        "data": f"the loader takes {format_seconds(forecast.loader_s)}",
    }[forecast.bottleneck]
    steps, total = plan.batch.total_steps.value, plan.batch.global_batch_size.value
    fast, slow = forecast.interval(forecast.samples_per_s)
    short, long = (format_seconds(value) for value in forecast.interval(forecast.duration_s))
    energy: Decision[float | None] = Decision(None, "the board's power is not known")
    if forecast.energy_kwh is not None:
        energy = Decision(
            round(forecast.energy_kwh, 3),
            f"at most: {plan.devices.ranks.value} x {forecast.board_w:g} W, the limit, all the "
            "time",
        )
    return plan.replace(
        forecast=forecast,
        step_s=Decision(
            forecast.step_s,
            f"{' + '.join(parts)}; {low} to {high}; {bound}; rates: {forecast.source}",
        ),
        samples_per_s=Decision(
            forecast.samples_per_s,
            f"{total} / {format_seconds(forecast.step_s)}; {fast:,.0f} to {slow:,.0f}",
        ),
        duration_s=Decision(
            forecast.duration_s,
            f"{steps} steps, with evaluation; {short} to {long}; start and checkpoints are not "
            "counted",
        ),
        energy_kwh=energy,
    )
