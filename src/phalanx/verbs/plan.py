"""Plan a job without training it: what `phalanx plan` and `phalanx.plan` both do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from phalanx.job import Override
from phalanx.machine import Machine
from phalanx.planner.scaling import RanksRow, counts_of, scaling_table
from phalanx.planner.schema.plan import Plan
from phalanx.prepare.job import Source
from phalanx.prepare.plan import Prepared, prepare


def plan(
    source: Source | None,
    overrides: Sequence[Override | str] = (),
    *,
    machine: Machine | None = None,
    is_fresh: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Prepared:
    """Return a job with its plan, for this machine or for a described one. Raises UserError.

    `is_fresh` asks the recipe again although its answer is cached; `say` is told what the recipe
    reports on its way."""
    return prepare(
        source,
        overrides,
        machine=machine,
        is_elsewhere=machine is not None,
        is_fresh=is_fresh,
        say=say,
    )


def ranks_table(prepared: Prepared) -> list[RanksRow]:
    """Plan the same job on other numbers of ranks."""
    ranks = prepared.plan.devices.ranks.value
    counts = counts_of(prepared.machine, ranks, is_elsewhere=prepared.is_elsewhere)
    return scaling_table(
        prepared.job, prepared.machine, prepared.trace, counts, prepared.calibration
    )


def cost_of(plan: Plan, price: float | None) -> float | None:
    """Return what the job costs at a price per GPU and hour."""
    if price is None or plan.predicted.forecast is None:
        return None
    return round(plan.predicted.forecast.gpu_hours * price, 2)
