"""A few steps on one rank, two ranks compared with one, a few steps on all: `train --ladder`.

What goes wrong goes wrong on the lowest rung that shows it, in minutes, before the real run begins.
Every rung is a run of its own in a folder that is thrown away, checkpoint included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from phalanx.errors import ExitCode, Finding, UserError, errors_of, format_bytes
from phalanx.job import Override
from phalanx.job.source.value_types import Interval
from phalanx.planner.schema.plan import Decision
from phalanx.planner.solve import solve_plan
from phalanx.planner.verify_plans import devices_for
from phalanx.prepare.job import Source
from phalanx.prepare.launcher import Launcher
from phalanx.prepare.plan import Prepared
from phalanx.prepare.scratch_run import run_folder
from phalanx.run.event_kinds import Step
from phalanx.run.events import Event
from phalanx.verbs.short_run import ShortRun, run_short
from phalanx.verbs.verify import verify_job

_STEPS = 5
_COMPARED_RANKS = 2


@dataclass(frozen=True)
class Rung:
    """What was tried, and what came of it."""

    ranks: int
    device: str
    steps: int
    verdict: str
    losses: tuple[float, ...] = ()
    samples_per_s: float | None = None
    memory_bytes: int | None = None
    """The most that one rank had."""

    def describe(self) -> str:
        facts = [f"{self.ranks} rank{'' if self.ranks == 1 else 's'} on {self.device}"]
        if self.steps:
            facts.append(f"{self.steps} steps")
        if self.losses:
            facts.append(f"loss {self.losses[0]:.4g} -> {self.losses[-1]:.4g}")
        if self.samples_per_s is not None:
            facts.append(f"{self.samples_per_s:,.0f} samples/s")
        if self.memory_bytes is not None:
            facts.append(format_bytes(self.memory_bytes))
        return f"{', '.join(facts)}: {self.verdict}"


def climb(
    source: Source | None,
    overrides: Sequence[Override | str],
    prepared: Prepared,
    launcher: Launcher,
    *,
    on_rung: Callable[[Rung], None],
    on_findings: Callable[[list[Finding]], None],
) -> None:
    """Take every rung, and hand each on before the next. Raises UserError at the first that fails;
    the logs of its run are left where the Findings say."""
    with run_folder("ladder") as folder:
        alone = _on_one_rank(prepared)
        if isinstance(alone, Finding):
            first = Rung(1, prepared.plan.devices.device.value, 0, f"left out: {alone.what}")
        else:
            first = _try_out(alone, launcher, folder)
        on_rung(first)
        if prepared.plan.devices.ranks.value > 1:
            on_rung(_compare(source, overrides, on_findings))
            on_rung(_try_out(prepared, launcher, folder, slower=first.samples_per_s))


def _on_one_rank(prepared: Prepared) -> Prepared | Finding:
    """The same job on the first device; a Finding where it does not fit there."""
    if prepared.plan.devices.ranks.value == 1:
        return prepared
    devices, _ = devices_for(prepared.job, prepared.machine, 1)
    job = prepared.job.model_copy(update={"devices": devices})
    plan, findings = solve_plan(
        job, prepared.machine, prepared.trace, calibration=prepared.calibration
    )
    wrong = errors_of(findings)
    return wrong[0] if wrong else replace(prepared, job=job, plan=plan)


def _compare(
    source: Source | None,
    overrides: Sequence[Override | str],
    on_findings: Callable[[list[Finding]], None],
) -> Rung:
    """Only the ranks end a ladder: the plan's micro-batches may differ because the job says so, and
    with other numbers of ranks they differ again."""
    done = verify_job(source, overrides, ranks=_COMPARED_RANKS, steps=_STEPS)
    if not done.comparison.is_same:
        raise UserError(done.findings, exit_code=ExitCode.FAILED)
    on_findings(
        [replace(f, severity="warning") if f.severity == "error" else f for f in done.findings]
    )
    verdict = f"the same as on 1 rank, to {done.comparison.tolerance:g} of the norm, in float64"
    if not done.passed:
        verdict += (
            f", in micro-batches of {done.plan.batch.micro_batch_size.value}; not in the plan's"
        )
    return Rung(_COMPARED_RANKS, done.plan.devices.device.value, done.steps, verdict)


def _try_out(
    prepared: Prepared, launcher: Launcher, folder: Path, slower: float | None = None
) -> Rung:
    """Train the first steps; `slower`: samples/s of the rung to compare with."""
    ranks = prepared.plan.devices.ranks.value
    steps = min(_STEPS, prepared.plan.batch.total_steps.value)
    job = prepared.job.model_copy(
        update={
            "stop_after": Interval(count=steps, unit="steps"),
            "logging": prepared.job.logging.model_copy(update={"every": 1}),
        }
    )
    never: Decision[int | None] = Decision(None, "a rung of the ladder")
    plan = prepared.plan.replace(evaluate_every=never)
    seen = _Seen()
    done = run_short(
        replace(prepared, job=job, plan=plan),
        folder,
        f"{ranks}-ranks",
        launcher=launcher,
        on_event=seen.take,
    )
    _judge(done, steps, seen.losses)
    rate, verdict = seen.rate(), "trains"
    if slower and rate:
        verdict += f", {rate / slower:.2f}x the samples/s of 1 rank (its first steps)"
    return Rung(
        ranks,
        plan.devices.device.value,
        steps,
        verdict,
        tuple(seen.losses),
        rate,
        seen.memory_bytes,
    )


def _judge(done: ShortRun, steps: int, losses: list[float]) -> None:
    done.raise_if_failed()
    outcome = done.outcome
    if outcome.step != steps:
        raise UserError(
            Finding(
                slug="ladder-stopped",
                what=f"stopped after {outcome.step or 0} of {steps} steps of a rung",
                why=f"{outcome.reason}; the real run was not begun",
                fix="run it again, or leave --ladder out",
            ),
            exit_code=ExitCode.INTERRUPTED,
        )
    wrong = next((n for n, loss in enumerate(losses, 1) if not math.isfinite(loss)), None)
    if wrong is not None:
        raise UserError(
            Finding(
                slug="ladder-loss",
                what=f"the loss is {losses[wrong - 1]} at step {wrong} of {steps}",
                why="a loss that is no number stays one: the real run was not begun",
                fix="optimizer.lr smaller, optimizer.clip_norm=1.0, or precision=fp32",
            ),
            exit_code=ExitCode.FAILED,
        )


class _Seen:
    """What the ranks of a rung have said."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.memory_bytes: int | None = None
        self._rates: list[float] = []

    def take(self, event: Event) -> None:
        step = event.body
        if isinstance(step, Step) and step.loss is not None:
            self.losses.append(step.loss)
            self._rates.append(step.samples_per_s or 0.0)
            self.memory_bytes = max(self.memory_bytes or 0, step.memory_bytes or 0)

    def rate(self) -> float | None:
        """Of the fastest step: the first ones warm up."""
        return max(self._rates, default=None)
