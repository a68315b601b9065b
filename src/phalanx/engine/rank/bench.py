"""Measures a job's real step at several micro-batches, inside the ranks: time by part, and memory.

warm up -> a window as a run has it (the time) -> memory -> a short window that is looked into (the
parts). On CUDA that window comes once all sizes are timed: the profiler, once used, makes every
later launch in the process slower (a third on an H200). Whatever it trains is thrown away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from phalanx.codec import to_json
from phalanx.engine.data.fetch_time import fetch_seconds
from phalanx.engine.process.device_memory import clear_device
from phalanx.engine.process.group import Process, StopRequest, join
from phalanx.engine.process.out_of_memory import during, find_shortage
from phalanx.engine.rank.bench_device import Say, measure_device
from phalanx.engine.rank.bench_rank import MeasuredRank
from phalanx.errors import ExitCode
from phalanx.job.schema import Job
from phalanx.planner.schema.plan import Plan
from phalanx.planner.time.bench_points import Measured, plan_at
from phalanx.recipe.loading import load_recipe
from phalanx.run.event_kinds import Body, DeviceMeasured, Measuring, Outcome, SizeMeasured
from phalanx.run.events import EventWriter


def measure_job_here(
    job: Job,
    plan: Plan,
    micro_batches: Iterable[int],
    *,
    accumulation: int = 1,
    is_split: bool = True,
) -> list[Measured]:
    """Measure a plan of one rank in this process, and free the device afterwards: one job after
    another can be measured in one process. Without `is_split` the profiler stays out, which holds
    some device memory from its first use on; all but waiting for data is then compute."""
    with join(plan) as process:
        return list(
            measure_job(
                job, plan, process, micro_batches, accumulation=accumulation, is_split=is_split
            )
        )


def measure_job(
    job: Job,
    plan: Plan,
    process: Process,
    micro_batches: Iterable[int],
    *,
    accumulation: int = 1,
    is_split: bool = True,
    say: Say = lambda what: None,
) -> Iterator[Measured]:
    """Measure the plan at each micro-batch from small to large, until memory runs out. On several
    ranks running out is raised: the others wait inside a reduction, so all of them must end."""
    recipe = load_recipe(job.recipe, job.options)
    data = recipe.data("train")
    fetch_s = fetch_seconds(data)
    is_profiled = is_split and process.device.type == "cuda"
    timed: list[tuple[Plan, Measured]] = []
    for micro_batch in sorted(set(micro_batches)):
        at = plan_at(plan, micro_batch, accumulation)
        if at is None:
            yield Measured(micro_batch, None, "samples")
            continue
        say(f"steps of micro-batch {micro_batch}")
        clear_device(process.device)
        make = partial(MeasuredRank, job, at, process, recipe, data)
        measured = _measure_or_none(make, process, at, fetch_s, is_split and not is_profiled)
        clear_device(process.device)  # here, where no frame of the measurement is left
        if is_profiled and measured.step is not None:
            timed.append((at, measured))
        else:
            yield measured
        if measured.missing == "memory":
            break
    for at, measured in timed:
        say(f"parts of a step of micro-batch {measured.micro_batch}")
        parts = _split_again(MeasuredRank(job, at, process, recipe, data), measured)
        clear_device(process.device)
        yield parts


def _measure_or_none(
    make: Callable[[], MeasuredRank], process: Process, plan: Plan, fetch_s: float, is_split: bool
) -> Measured:
    micro_batch = plan.batch.micro_batch_size.value
    try:
        with during("step"):
            rank = make()
            step, notes = rank.measure(fetch_s)
            if is_split:
                step, more = rank.split(step)
                notes += more
            return Measured(micro_batch, step, notes=notes)
    except Exception as error:
        if process.world > 1 or find_shortage(error, str(process.device)) is None:
            raise
        return Measured(micro_batch, None, "memory")


def _split_again(rank: MeasuredRank, measured: Measured) -> Measured:
    """The parts of a step whose time is known, in a rank that is built once more."""
    assert measured.step is not None
    rank.warm_up()
    step, notes = rank.split(measured.step)
    return replace(measured, step=step, notes=[*measured.notes, *notes])


def run_bench(
    job: Job,
    plan: Plan,
    process: Process,
    events: EventWriter,
    stop: StopRequest,
    asked: Sequence[int],
) -> Outcome:
    """All that a rank of `bench` does, at the micro-batches `asked`; the first one writes what was
    measured as it comes."""

    def write(event: Body) -> None:
        if process.is_first:
            events.write(event)

    def say(what: str) -> None:
        write(Measuring(what=what))

    write(DeviceMeasured(calibration=to_json(measure_device(process, say))))
    is_stopped = False
    for measured in measure_job(job, plan, process, asked, say=say) if asked else ():
        write(SizeMeasured(**to_json(measured)))
        # A signal reaches the ranks one after the other: they stop where the first one says.
        is_stopped = bool(process.agree(int(stop.is_set)))
        if is_stopped:
            break
    return Outcome(
        status="stopped" if is_stopped else "finished",
        step=None,
        reason="stopped before all was measured" if is_stopped else "measured",
        findings=[],
        exit_code=int(ExitCode.STOPPED if is_stopped else ExitCode.OK),
    )
