"""Measures this machine, and a job's real steps on it: `phalanx bench`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from phalanx.codec import from_json, to_json
from phalanx.errors import ExitCode, Finding, UserError
from phalanx.job import Override
from phalanx.machine.calibration import Calibration, MeasuredStep
from phalanx.planner.schema.plan import Plan
from phalanx.planner.solve import solve_plan
from phalanx.planner.time.bench_points import Measured, choose_micro_batches, plan_at
from phalanx.planner.time.bottleneck import Bottleneck, find_bottleneck, throughput
from phalanx.prepare.calibrations import store_calibration
from phalanx.prepare.job import Source
from phalanx.prepare.launcher import Launcher
from phalanx.prepare.plan import Prepared, prepare
from phalanx.prepare.scratch_run import run_folder
from phalanx.run.event_kinds import DeviceMeasured, Measuring, Outcome, SizeMeasured, to_fields
from phalanx.run.events import Event
from phalanx.run.purpose import Measure
from phalanx.verbs.short_run import ShortRun, run_short

_ANY_JOB = "digits"  # ranks need a plan; of this one's nothing is run


@dataclass(frozen=True)
class Bench:
    """What was measured, and what it means."""

    calibration: Calibration
    """Of this time only; the file also has what was measured before."""
    plan: Plan
    recipe: str | None
    """None when only the machine was measured."""
    measured: list[Measured]
    predicted: dict[int, Plan]
    """By micro-batch: what the planner said before it was measured."""
    bottleneck: Bottleneck | None
    stored: Path
    findings: list[Finding]

    @property
    def steps(self) -> list[MeasuredStep]:
        return [measured.step for measured in self.measured if measured.step is not None]

    @property
    def fastest(self) -> MeasuredStep | None:
        return max(self.steps, key=throughput, default=None)

    def to_json(self) -> dict[str, Any]:
        plan, fastest = self.plan, self.fastest
        job = {
            "recipe": self.recipe,
            "ranks": plan.devices.ranks.value,
            "device": plan.devices.device.value,
            "strategy": plan.parallel.strategy.value,
            "precision": plan.numerics.precision.value,
            "measured": [
                {
                    **to_json(measured),
                    "samples_per_s": throughput(measured.step) if measured.step else None,
                }
                for measured in self.measured
            ],
            "predicted": [
                {
                    "micro_batch": micro_batch,
                    "step_s": made.predicted.step_s.value,
                    "forecast": to_json(made.predicted.forecast),
                    "allocated_bytes": made.predicted.memory_bytes.value,
                    "process_bytes": made.predicted.process_bytes.value,
                }
                for micro_batch, made in self.predicted.items()
            ],
            "fastest_micro_batch": fastest.micro_batch if fastest else None,
            "bottleneck": to_json(self.bottleneck),
        }
        return {
            "calibration": to_json(self.calibration),
            "job": job if self.recipe is not None else None,
            "stored": str(self.stored),
            "findings": to_json(self.findings),
        }


def bench(
    source: Source | None,
    overrides: Sequence[Override | str] = (),
    *,
    micro_batches: Sequence[int] = (),
    say: Callable[[str], None] = lambda phase: None,
) -> Bench:
    """Measure this machine, and a job on it where one is given. Raises UserError when the job is
    wrong or the ranks fail; memory that runs out at a large micro-batch is a result."""
    _check_request(source, micro_batches)
    say("looking at the machine and the recipe")
    with Launcher() as launcher:
        return _bench(source, overrides, micro_batches, say, launcher)


def _bench(
    source: Source | None,
    overrides: Sequence[Override | str],
    micro_batches: Sequence[int],
    say: Callable[[str], None],
    launcher: Launcher,
) -> Bench:
    prepared = prepare(source if source is not None else _ANY_JOB, overrides, launcher=launcher)
    asked: list[int] = []
    if source is not None:
        asked = sorted(set(micro_batches)) or choose_micro_batches(prepared.plan)
        _check_samples(prepared.plan, asked)
    heard = _Listener(say)
    with run_folder("bench") as folder:
        done = run_short(
            prepared,
            folder,
            "bench",
            launcher=launcher,
            purpose=Measure(tuple(asked)),
            on_event=heard.take,
        )
        heard.judge(done, asked)
    assert heard.calibration is not None  # written before anything else was measured
    steps = [measured.step for measured in heard.measured if measured.step is not None]
    calibration = replace(heard.calibration, steps=tuple(steps))
    stored, problems = store_calibration(calibration)
    return Bench(
        calibration=calibration,
        plan=prepared.plan,
        recipe=prepared.job.recipe if source is not None else None,
        measured=heard.measured,
        predicted={step.micro_batch: _predict(prepared, step.micro_batch) for step in steps},
        bottleneck=find_bottleneck(prepared.plan, steps, cores=prepared.machine.cpu.usable_cores),
        stored=stored,
        findings=[*(prepared.findings if source is not None else ()), *done.findings, *problems],
    )


def _check_request(source: Source | None, micro_batches: Sequence[int]) -> None:
    problems = []
    wrong = [micro for micro in micro_batches if micro < 1]
    if wrong:
        problems.append(
            Finding(
                slug="bench-micro",
                what=f"a micro-batch of {wrong[0]} samples cannot be measured, 1 or more can",
                why=f"--micro {','.join(map(str, micro_batches))}",
                fix="--micro 8,16,32",
            )
        )
    if micro_batches and source is None:
        problems.append(
            Finding(
                slug="bench-nothing",
                what="micro-batches are given, but no job whose steps are to be measured",
                why=f"--micro {','.join(map(str, micro_batches))}; without a job `bench` measures "
                "the machine",
                fix=f"phalanx bench digits --micro {','.join(map(str, micro_batches))}",
            )
        )
    if problems:
        raise UserError(problems)


def _check_samples(plan: Plan, asked: list[int]) -> None:
    if any(plan_at(plan, micro) is not None for micro in asked):
        return
    ranks, samples = plan.devices.ranks.value, plan.batch.num_samples.value
    raise UserError(
        Finding(
            slug="bench-samples",
            what=f"no step can be measured: {asked[0]} samples x {ranks} ranks, the train split "
            f"has {samples}",
            why="every rank runs one whole micro-batch in each step",
            fix=f"--micro {max(1, samples // ranks)}" if samples >= ranks else f"--cpu {samples}",
        )
    )


def _predict(prepared: Prepared, micro_batch: int) -> Plan:
    """What the planner says of the job at this micro-batch, with what was known before."""
    plan = prepared.plan
    word = "on" if plan.execution.activation_checkpointing.value else "off"
    job = prepared.job.model_copy(
        update={
            "micro_batch_size": micro_batch,
            "global_batch_size": micro_batch * plan.devices.ranks.value,
            "batch_per_gpu": None,
            "gradient_accumulation": None,
            "activation_checkpointing": word,
            "strategy": plan.parallel.strategy.value,
            "precision": plan.numerics.precision.value,
            "compile": plan.execution.compile.value,
            "channels_last": plan.execution.channels_last.value,
            "cuda_graph": plan.execution.cuda_graph.value,
        }
    )
    made, _ = solve_plan(job, prepared.machine, prepared.trace, calibration=prepared.calibration)
    return made


class _Listener:
    """Collects what the ranks say."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.calibration: Calibration | None = None
        self.measured: list[Measured] = []
        self._is_short_of_memory = False

    def take(self, event: Event) -> None:
        match event.body:
            case Measuring(what=what):
                self._say(f"measuring: {what}")
            case DeviceMeasured(calibration=record):
                self.calibration = from_json(Calibration, record)
            case SizeMeasured() as size:
                self.measured.append(from_json(Measured, to_fields(size)))
            case Outcome(memory=memory) if memory is not None:
                self._is_short_of_memory = True

    def judge(self, done: ShortRun, asked: list[int]) -> None:
        """Several ranks end together when one runs out of memory; what came before counts."""
        outcome = done.outcome
        if outcome.status == "stopped":
            raise UserError(
                Finding(
                    slug="bench-stopped",
                    what=f"stopped after {len(self.measured)} of {len(asked)} micro-batches",
                    why=f"{outcome.reason}; nothing was stored",
                    fix="run it again",
                ),
                exit_code=ExitCode.INTERRUPTED,
            )
        if outcome.status != "failed":
            return
        if not self._is_short_of_memory or self.calibration is None:
            done.raise_if_failed()
        seen = {measured.micro_batch for measured in self.measured}
        short = next(micro for micro in asked if micro not in seen)
        self.measured.append(Measured(short, None, "memory"))
