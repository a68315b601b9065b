"""How long a job would take on so many GPUs, and what that saves. Nothing is trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from phalanx.errors import Finding, UserError
from phalanx.job import Override
from phalanx.launch.prepare import Prepared, Source, prepare
from phalanx.launch.trace import AskTrace, trace_recipe
from phalanx.launch.trace_cache import remembering
from phalanx.machine import Machine, parse_machine
from phalanx.planner.resize import on_ranks
from phalanx.planner.solve import solve_plan
from phalanx.planner.trace import Trace


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

    def interval(self, value: float) -> tuple[float, float]:
        return value / (1 + self.spread), value * (1 + self.spread)

    def to_json(self) -> dict[str, Any]:
        derived = ("efficiency", "epoch_s", "total_s", "gpu_hours")
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
    gpus: int | None,
    gpu: str | None,
    dataset_size: int | None,
    step_time: float | None,
    steps: Sequence[int],
) -> tuple[Estimate, list[Finding]]:
    """The job on `gpus` cards named `gpu`, or like those that are here; `step_time` is what one GPU
    was measured to take for a step."""
    _check_numbers(gpus, dataset_size, step_time, steps)
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
    ranks = gpus or prepared.plan.ranks.value
    return _estimate(prepared, ranks, step_time, steps), prepared.findings


def _estimate(
    prepared: Prepared, ranks: int, step_time: float | None, steps: Sequence[int]
) -> Estimate:
    scaled = on_ranks(prepared.job, prepared.machine, ranks)
    plan, _ = solve_plan(
        scaled.job, scaled.machine, prepared.trace, calibration=prepared.calibration
    )
    forecast, speedup = plan.forecast, plan.speedup.value
    if forecast is None and step_time is None:
        raise UserError(_unpredicted(prepared.trace))
    # A step of one GPU has the batch of one GPU where the job states the batch per GPU.
    alone = on_ranks(prepared.job, prepared.machine, 1)
    one, _ = solve_plan(alone.job, alone.machine, prepared.trace, calibration=prepared.calibration)
    share = plan.global_batch_size.value / one.global_batch_size.value
    if step_time is not None:
        one_s, step_s = step_time, step_time * share / speedup
    else:
        assert forecast is not None and one.forecast is not None
        one_s, step_s = one.forecast.step_s, forecast.step_s
    epochs = plan.total_steps.value / plan.steps_per_epoch.value
    energy = forecast.energy_kwh if forecast is not None else None
    if energy is not None and forecast is not None:
        energy *= step_s / forecast.step_s
    return Estimate(
        machine=scaled.machine.title,
        ranks=ranks,
        num_samples=plan.num_samples.value,
        epochs=epochs,
        global_batch_size=plan.global_batch_size.value,
        micro_batch_size=plan.micro_batch_size.value,
        strategy=plan.strategy.value,
        steps_per_epoch=plan.steps_per_epoch.value,
        total_steps=plan.total_steps.value,
        step_s=step_s,
        one_step_s=one_s,
        speedup=speedup,
        spread=0.1 if step_time is not None or forecast is None else forecast.spread,
        energy_kwh=energy,
        bottleneck=forecast.bottleneck if forecast is not None else "unknown",
        source="--step-time" if step_time is not None else plan.step_s.reason,
        saved=[Saved(count, count * one_s * share, count * step_s) for count in steps],
    )


def _of_size(dataset_size: int | None) -> AskTrace:
    """Asks the recipe, and puts the size of another data set in place of its own."""

    def ask(
        spec: str, options: dict[str, Any], is_compiled: bool = False
    ) -> tuple[Trace | None, list[Finding]]:
        asked = remembering(trace_recipe, is_fresh=False)
        trace, findings = asked(spec, options, is_compiled)
        if trace is not None and dataset_size is not None:
            trace = replace(trace, num_samples=dataset_size)
        return trace, findings

    return ask


def _check_numbers(
    gpus: int | None, dataset_size: int | None, step_time: float | None, steps: Sequence[int]
) -> None:
    given = {
        "--gpus": gpus,
        "--dataset-size": dataset_size,
        "--step-time": step_time,
        **{f"--steps {count}": count for count in steps},
    }
    wrong = {name: value for name, value in given.items() if value is not None and value <= 0}
    if wrong:
        raise UserError(
            [
                Finding(
                    slug="estimate-numbers",
                    what=f"{name.split()[0]} is {value}, it must be more than 0",
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


def _unpredicted(trace: Trace) -> Finding:
    return Finding(
        slug="time-unknown",
        what="the time of a step cannot be predicted for this recipe",
        why=f"its model could not be traced: {trace.activations_unknown or 'no operators'}",
        fix="measure one GPU's step and give it: --step-time 0.25",
    )
