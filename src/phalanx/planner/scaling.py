"""The same job on other numbers of ranks: how much faster each would be."""

from __future__ import annotations

from typing import NamedTuple

from phalanx.job.schema import Job
from phalanx.machine import Machine
from phalanx.machine.calibration import Calibration
from phalanx.planner.resize import on_ranks
from phalanx.planner.schema.trace import Trace
from phalanx.planner.solve import solve_plan

_SHOWN = (1, 2, 4, 8, 16)


class RanksRow(NamedTuple):
    """A job on some number of ranks."""

    ranks: int
    strategy: str
    global_batch_size: int
    micro_batch_size: int
    accumulation: int
    steps_per_epoch: int
    lr: float
    step_s: float | None
    samples_per_s: float | None
    speedup: float
    """Over one rank: predicted, or where time is not known what the deal of micro-batches allows.
    """
    speedup_range: list[float]
    """The least and the most; empty where time is not predicted."""
    efficiency: float
    duration_s: float | None
    memory_bytes: int | None


def scaling_table(
    job: Job,
    machine: Machine,
    trace: Trace,
    counts: list[int],
    calibration: Calibration | None = None,
) -> list[RanksRow]:
    """What other numbers of ranks would mean for a new run of this job."""
    rows = []
    for ranks in counts:
        scaled = on_ranks(job, machine, ranks)
        plan, _ = solve_plan(scaled.job, scaled.machine, trace, calibration=calibration)
        forecast = plan.predicted.forecast
        rows.append(
            RanksRow(
                ranks=ranks,
                strategy=plan.parallel.strategy.value,
                global_batch_size=plan.batch.global_batch_size.value,
                micro_batch_size=plan.batch.micro_batch_size.value,
                accumulation=plan.batch.accumulation.value,
                steps_per_epoch=plan.batch.steps_per_epoch.value,
                lr=plan.learning.lr.value,
                step_s=forecast.step_s if forecast is not None else None,
                samples_per_s=forecast.samples_per_s if forecast is not None else None,
                speedup=plan.predicted.speedup.value,
                speedup_range=plan.predicted.speedup_range,
                efficiency=plan.predicted.speedup.value / ranks,
                duration_s=forecast.duration_s if forecast is not None else None,
                memory_bytes=plan.predicted.memory_bytes.value,
            )
        )
    return rows


def counts_of(machine: Machine, used: int, *, is_elsewhere: bool) -> list[int]:
    """Numbers of ranks worth showing."""
    counts = {*_SHOWN, used}
    if machine.accelerator != "cuda":
        total = machine.cpu.usable_cores if machine.accelerator == "cpu" else 1
        return sorted({n for n in counts if n <= total} | {used})
    if is_elsewhere:
        total = max(machine.nodes * len(machine.visible_gpus), used)
        counts = {n for n in counts if n <= total} | {total, used}
    return sorted(counts)
