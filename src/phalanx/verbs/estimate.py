"""How long a job would take on so many GPUs, and what that saves. Nothing is trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from phalanx.errors import Finding, UserError
from phalanx.job import Override
from phalanx.machine import Machine, parse_machine
from phalanx.planner.resize import on_ranks
from phalanx.planner.schema.forecast import Forecast
from phalanx.planner.schema.plan import Plan
from phalanx.planner.schema.trace import EAGER, Trace
from phalanx.planner.solve import solve_plan
from phalanx.prepare.job import Source
from phalanx.prepare.plan import Prepared, prepare
from phalanx.prepare.trace import AskTrace, trace_recipe
from phalanx.prepare.trace_cache import remembering

STEPS = (5000, 10000, 20000)
"""That one GPU and all are compared for."""
_MOST = 1_000_000_000  # as in a job file
_STATED_SPREAD = 0.1  # relative half-width of a step's time that was measured


@dataclass(frozen=True)
class Saved:
    """Some number of steps on one GPU and on all."""

    steps: int
    one_s: float
    all_s: float

    @property
    def saved_s(self) -> float:
        return self.one_s - self.all_s


@dataclass(frozen=True)
class Estimate:
    """A job on some number of GPUs."""

    recipe: str
    machine: str
    ranks: int
    num_samples: int
    epochs: float
    global_batch_size: int
    micro_batch_size: int
    strategy: str
    steps_per_epoch: int
    total_steps: int
    step_s: float
    one_step_s: float
    """On one GPU."""
    speedup: float
    spread: float
    """Relative half-width of the times' interval."""
    energy_kwh: float | None
    bottleneck: str
    source: str
    saved: list[Saved]
    device: str = "cuda"
    price: float | None = None
    """Of one GPU for an hour."""

    @property
    def efficiency(self) -> float:
        return self.speedup / self.ranks

    @property
    def epoch_s(self) -> float:
        return self.steps_per_epoch * self.step_s

    @property
    def total_s(self) -> float:
        return self.total_steps * self.step_s

    @property
    def gpu_hours(self) -> float:
        return self.ranks * self.total_s / 3600

    @property
    def cost(self) -> float | None:
        return None if self.price is None else round(self.gpu_hours * self.price, 2)

    def interval(self, value: float) -> tuple[float, float]:
        return value / (1 + self.spread), value * (1 + self.spread)

    def to_json(self) -> dict[str, Any]:
        derived = ("efficiency", "epoch_s", "total_s", "gpu_hours", "cost")
        low, high = self.interval(self.total_s)
        return {
            **asdict(self),
            **{name: getattr(self, name) for name in derived},
            "total_low_s": low,
            "total_high_s": high,
            "saved": [{**asdict(row), "saved_s": row.saved_s} for row in self.saved],
        }


def estimate_job(
    source: Source,
    overrides: Sequence[Override | str],
    *,
    gpus: int | None = None,
    gpu: str | None = None,
    dataset_size: int | None = None,
    step_time: float | None = None,
    steps: Sequence[int] = STEPS,
    price: float | None = None,
) -> tuple[Estimate, list[Finding]]:
    """The job on `gpus` cards named `gpu`, or like those that are here; `step_time` is what one GPU
    was measured to take for a step, `price` that of a GPU for an hour."""
    _check_numbers(gpus, dataset_size, step_time, steps, price)
    other = parse_machine(f"{gpus or 1}x {gpu}") if gpu is not None else None
    prepared = prepare(
        source,
        overrides,
        machine=other,
        is_elsewhere=other is not None,
        ask_trace=_of_size(dataset_size),
    )
    machine = prepared.machine
    if gpus is not None and other is None and machine.accelerator != "cuda":
        raise UserError(_which_gpu(gpus, machine))
    ranks = gpus or prepared.plan.devices.ranks.value
    found = _estimate(prepared, ranks, step_time, steps)
    return replace(found, price=price), prepared.findings


def _estimate(
    prepared: Prepared, ranks: int, step_time: float | None, steps: Sequence[int]
) -> Estimate:
    scaled = on_ranks(prepared.job, prepared.machine, ranks)
    plan, _ = solve_plan(
        scaled.job, scaled.machine, prepared.trace, calibration=prepared.calibration
    )
    forecast, speedup = plan.predicted.forecast, plan.predicted.speedup.value
    if forecast is None and step_time is None:
        raise UserError(_unpredicted(prepared))
    # A step of one GPU has the batch of one GPU where the job states the batch per GPU.
    alone = on_ranks(prepared.job, prepared.machine, 1)
    one, _ = solve_plan(alone.job, alone.machine, prepared.trace, calibration=prepared.calibration)
    share = plan.batch.global_batch_size.value / one.batch.global_batch_size.value
    if step_time is None:
        assert forecast is not None and one.predicted.forecast is not None
        one_s, step_s, spread = one.predicted.forecast.step_s, forecast.step_s, forecast.spread
        source = plan.predicted.step_s.reason
    else:
        one_s, step_s, spread = step_time, step_time * share / speedup, _STATED_SPREAD
        source = f"--step-time {step_time:g}"
        if forecast is not None and ranks > 1:
            step_s, spread = _from_stated(
                plan, forecast, step_time, one.batch.global_batch_size.value
            )
            speedup = share * step_time / step_s
            source += f", shared out; beside it: {plan.predicted.step_s.reason}"
    epochs = plan.batch.total_steps.value / plan.batch.steps_per_epoch.value
    energy = forecast.energy_kwh if forecast is not None else None
    if energy is not None and forecast is not None:
        energy *= step_s / forecast.step_s
    return Estimate(
        recipe=prepared.job.recipe,
        machine=scaled.machine.title,
        ranks=ranks,
        num_samples=plan.batch.num_samples.value,
        epochs=epochs,
        global_batch_size=plan.batch.global_batch_size.value,
        micro_batch_size=plan.batch.micro_batch_size.value,
        strategy=plan.parallel.strategy.value,
        steps_per_epoch=plan.batch.steps_per_epoch.value,
        total_steps=plan.batch.total_steps.value,
        step_s=step_s,
        one_step_s=one_s,
        speedup=speedup,
        spread=spread,
        energy_kwh=energy,
        bottleneck=forecast.bottleneck if forecast is not None else "unknown",
        source=source,
        device=plan.devices.device.value,
        saved=[Saved(count, count * one_s * share, count * step_s) for count in steps],
    )


def _from_stated(
    plan: Plan, forecast: Forecast, step_time: float, samples: int
) -> tuple[float, float]:
    """(a step of all ranks, its spread) when one rank takes `step_time` for `samples` samples: as
    much for each sample of the busiest rank, and never less than the host takes to start the
    operators; what ranks lose to each other is as predicted."""
    busiest = min(
        plan.batch.global_batch_size.value,
        plan.batch.accumulation.value * plan.batch.micro_batch_size.value,
    )
    computing = max(step_time * busiest / samples, forecast.host_s)
    waiting = computing * forecast.waiting_s / forecast.compute_s
    rest = computing + waiting + forecast.exposed_s
    step_s = max(rest, forecast.loader_s)
    exchange = forecast.exposed_s / step_s
    return step_s, (1 - exchange) * _STATED_SPREAD + exchange * forecast.spread


def _of_size(dataset_size: int | None) -> AskTrace:
    """Asks the recipe, and puts the size of another data set in place of its own."""

    def ask(
        spec: str, options: dict[str, Any], precisions: tuple[str, ...] = EAGER
    ) -> tuple[Trace | None, list[Finding]]:
        asked = remembering(trace_recipe, is_fresh=False)
        trace, findings = asked(spec, options, precisions)
        if trace is not None and dataset_size is not None:
            trace = replace(trace, num_samples=dataset_size)
        return trace, findings

    return ask


def _check_numbers(
    gpus: int | None,
    dataset_size: int | None,
    step_time: float | None,
    steps: Sequence[int],
    price: float | None,
) -> None:
    given: dict[str, float | None] = {
        "--gpus": gpus,
        "--dataset-size": dataset_size,
        "--step-time": step_time,
        "--price": price,
        **{f"--steps {count}": count for count in steps},
    }
    wrong = {
        name: value
        for name, value in given.items()
        if value is not None and not 0 < value <= _MOST  # a number that is none is neither
    }
    if wrong:
        raise UserError(
            [
                Finding(
                    slug="estimate-numbers",
                    what=f"{name.split()[0]} is {value:,}, it must be more than 0 and at most "
                    f"{_MOST:,}",
                    why="read from the command line",
                    fix="phalanx estimate digits --dataset-size 1000 --epochs 100 --gpus 16 "
                    '--gpu "RTX 2080"',
                )
                for name, value in wrong.items()
            ]
        )


def _which_gpu(gpus: int, machine: Machine) -> Finding:
    return Finding(
        slug="estimate-which-gpu",
        what=f"{gpus} GPUs of which kind? This machine has none",
        why=f"--gpus {gpus} without --gpu; {machine.driver_error or 'no GPU was found'}",
        fix=f'--gpus {gpus} --gpu "RTX 4090"',
    )


def _unpredicted(prepared: Prepared) -> Finding:
    trace = prepared.trace
    return Finding(
        slug="time-unknown",
        what="the time of a step cannot be predicted for this recipe",
        why=f"its model could not be traced: {trace.activations_unknown or 'no operators'}",
        fix=f"phalanx bench {prepared.job.recipe}, where such a GPU is; or give a step's time that "
        "you know: --step-time 0.25",
    )
