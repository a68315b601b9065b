"""How long a step, and the job, will take: the numbers. `forecaster` makes them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """One optimizer step, in seconds, and what follows from it."""

    step_s: float
    """Sum of the next four."""
    step_low_s: float
    step_high_s: float
    """The interval that it lies within, most of the time."""
    compute_s: float
    """Forward, backward and update of the busiest rank, host included."""
    exposed_s: float
    """Exchange that computing does not hide, and what computing loses to it."""
    waiting_s: float
    """For the slowest of the ranks."""
    data_s: float
    """For samples that are not there yet."""
    spread: float
    """Relative half-width of the interval."""
    device_s: float
    host_s: float
    exchange_s: float
    """All exchange, hidden or not."""
    loader_s: float
    """What the loader takes for a step's samples."""
    together_low_s: float = 0.0
    """What ranks cost one another, exchange and waiting, at best."""
    together_high_s: float = 0.0
    """At worst."""
    bottleneck: str
    """`device`, `host`, `communication` or `data`."""
    samples_per_s: float
    duration_s: float
    """The whole job, evaluations included, checkpoints not."""
    energy_kwh: float | None
    gpu_hours: float
    board_w: float = 0.0
    """Power limit of one board."""
    flops_per_sample: float = 0.0
    """Of forward and backward as the recipe is written; 0 where that is not known."""
    peak_flops: float = 0.0
    """What one rank's device computes in a second at most, in the plan's precision; 0 where that is
    not known: a CPU that was not measured."""
    source: str
    """Where the rates come from."""

    def interval(self, value: float) -> tuple[float, float]:
        """What a time of this forecast lies within, most of the time."""
        return value / (1 + self.spread), value * (1 + self.spread)

    def at_best(self) -> float:
        """Seconds of a step that its ranks slow down as little as may be."""
        return max(self.loader_s, self.compute_s + self.together_low_s)

    def at_worst(self) -> float:
        return max(self.loader_s, self.compute_s + self.together_high_s)
