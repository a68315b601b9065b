"""Runs a job on one rank and on many, each recorded, and compares: `phalanx verify`.

the same micro-batches on both sides     what differs is due to the number of ranks
those that `train` plans for each side   what differs now is due to the micro-batches; not run where
                                         both plans cut a step alike, or where the ranks differ
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from phalanx.codec import to_json
from phalanx.diagnose.compare import TOLERANCE, Comparison, compare
from phalanx.diagnose.difference_cause import explain
from phalanx.diagnose.micro_batches import Cuts, about_dropout, compare_cuts, explain_cuts
from phalanx.errors import Finding, UserError
from phalanx.job import LoadedJob, Override, load_job
from phalanx.job.schema import Job
from phalanx.machine import Machine
from phalanx.machine.gpus import may_have_cuda
from phalanx.planner.schema.plan import Plan
from phalanx.planner.schema.trace import Trace
from phalanx.planner.trace_precisions import wanted_precisions
from phalanx.planner.verify_plans import Side, comparable_sides, devices_for, planned_sides
from phalanx.prepare.job import Source, resolve_source
from phalanx.prepare.launcher import Launcher
from phalanx.prepare.plan import Prepared, prepare
from phalanx.prepare.scratch_run import run_folder
from phalanx.prepare.trace import AskTrace, trace_recipe
from phalanx.prepare.trace_cache import remembering
from phalanx.verbs.recorded_runs import RecordedRuns, run_name


@dataclass(frozen=True)
class PlannedComparison:
    """The comparison in the micro-batches that `train` plans."""

    comparison: Comparison
    cuts: Cuts
    dropout: list[str]
    """Dropout that was disabled for it."""

    def to_json(self) -> dict[str, Any]:
        return {
            "micro_batch_size": {"1": self.cuts.one, str(self.cuts.ranks): self.cuts.many},
            "sync_batchnorm": self.cuts.is_synced,
            "disabled_dropout": self.dropout,
            **self.comparison.to_json(),
        }


@dataclass(frozen=True)
class Verification:
    """Whether training on many ranks was training on one."""

    comparison: Comparison
    """In the same micro-batches on both sides."""
    planned: PlannedComparison | None
    """In those that `train` plans; None where they are the same on both sides, or where the ranks
    differ already."""
    recipe: str
    plan: Plan
    """What was done on many ranks."""
    steps: int
    findings: list[Finding]
    """What differs, as an error; before it notes and warnings about the two runs."""
    kept: Path | None
    """The folder with both run directories, where it was to be kept."""

    @property
    def passed(self) -> bool:
        planned = self.planned
        return self.comparison.is_same and (planned is None or planned.comparison.is_same)

    def to_json(self) -> dict[str, Any]:
        plan = self.plan
        return {
            "passed": self.passed,
            "recipe": self.recipe,
            "ranks": plan.devices.ranks.value,
            "steps": self.steps,
            "device": plan.devices.device.value,
            "strategy": plan.parallel.strategy.value,
            "precision": plan.numerics.precision.value,
            "global_batch_size": plan.batch.global_batch_size.value,
            "micro_batch_size": plan.batch.micro_batch_size.value,
            **self.comparison.to_json(),
            "planned": self.planned.to_json() if self.planned is not None else None,
            "findings": to_json(self.findings),
            "kept": str(self.kept) if self.kept else None,
        }


def verify_job(
    source: Source | None,
    overrides: Sequence[Override | str] = (),
    *,
    ranks: int = 2,
    steps: int = 5,
    tolerance: float = TOLERANCE,
    keep: Path | None = None,
    say: Callable[[str], None] = lambda phase: None,
) -> Verification:
    """Train the first steps of a job on one rank and on many, and compare. Raises UserError when
    the job is wrong or one of the runs fails; its logs are left where the Finding says."""
    _check_request(ranks, steps, keep)
    with run_folder("verify", keep) as folder, Launcher() as launcher:
        say("looking at the machine and the recipe")
        prepared, precision, notes = _prepare(
            source, overrides, ranks=ranks, steps=steps, launcher=launcher
        )
        steps = min(steps, prepared.plan.batch.total_steps.value)
        one, many, found = comparable_sides(
            prepared.job, prepared.machine, prepared.trace, prepared.plan, steps=steps
        )
        runs = RecordedRuns(prepared, launcher, folder, steps, say)
        first, second = runs.record(one, many)
        plan = runs.sides[1].plan
        compared = compare(first, second, tolerance)
        found += [difference] if (difference := explain(compared, first, second)) else []
        planned = None
        if compared.is_same:
            planned, differences = _compare_planned(prepared, precision, runs, tolerance)
            found += differences
        return Verification(
            comparison=compared,
            planned=planned,
            recipe=prepared.job.recipe,
            plan=plan,
            steps=steps,
            findings=[*notes, *runs.findings, *found],
            kept=keep,
        )


def _compare_planned(
    prepared: Prepared, precision: str, runs: RecordedRuns, tolerance: float
) -> tuple[PlannedComparison | None, list[Finding]]:
    """Compare in the micro-batches that `train` plans, where those are not the same."""

    def plan(job: Job) -> tuple[Side, Side] | None:
        return planned_sides(
            job,
            prepared.machine,
            prepared.trace,
            prepared.plan,
            precision=precision,
            calibration=prepared.calibration,
        )

    sides = plan(prepared.job)
    if sides is None:
        return None, []
    one, many = runs.record(*sides, name="planned")
    cuts = _cuts(prepared.job, *runs.sides)
    compared = compare_cuts(one, many, tolerance, cuts)

    def try_synced() -> Comparison | None:
        """With statistics over all ranks, where one round of them holds the whole batch."""
        synced = plan(prepared.job.model_copy(update={"sync_batchnorm": True}))
        is_open = not (cuts.is_synced or prepared.trace.own_batchnorms)
        if not is_open or prepared.job.determinism == "exact" or synced is None:
            return None
        if any(side.plan.batch.accumulation.value > 1 for side in synced):
            return None
        recordings = runs.record(*synced, name="synced")
        return compare_cuts(*recordings, tolerance, _cuts(prepared.job, *runs.sides))

    difference = explain_cuts(compared, one, many, cuts, try_synced)
    findings = [f for f in (about_dropout(one, cuts), difference) if f is not None]
    return PlannedComparison(compared, cuts, one.disabled_dropout), findings


def _cuts(job: Job, one: Side, many: Side) -> Cuts:
    fix = f"micro_batch_size={many.micro}"
    if job.gradient_accumulation is not None:
        fix += " gradient_accumulation=null"
    return Cuts(
        one=one.micro,
        many=many.micro,
        ranks=many.plan.devices.ranks.value,
        is_synced=many.plan.numerics.sync_batchnorm.value,
        is_even=one.is_even and many.is_even,
        fix=fix if one.micro != many.micro else "",
    )


def _check_request(ranks: int, steps: int, keep: Path | None) -> None:
    problems = []
    if ranks < 2 or steps < 1:
        problems.append(
            Finding(
                slug="verify-nothing",
                what=f"{steps} steps on {ranks} ranks are nothing to compare with 1 rank",
                why=f"--ranks {ranks}, --steps {steps}; at least 2 ranks and 1 step",
                fix="--ranks 2 --steps 5",
            )
        )
    names = (run_name(count, name) for name in _NAMES for count in (1, ranks))
    there = [name for name in names if keep and (keep / name).exists()]
    if there:
        problems.append(
            Finding(
                slug="verify-keep",
                what=f"`{keep}` holds {' and '.join(there)} already",
                why=f"--keep {keep}",
                fix=f"remove them, or --keep {keep}-2",
            )
        )
    if problems:
        raise UserError(problems)


_NAMES = ("", "planned", "synced")
"""Of the pairs of runs: in the same micro-batches, in those of the plans, with synced norms."""


def _prepare(
    source: Source | None,
    overrides: Sequence[Override | str],
    *,
    ranks: int,
    steps: int,
    launcher: Launcher,
) -> tuple[Prepared, str, list[Finding]]:
    """The job as it is compared, the precision that `train` would have, and notes."""
    notes: list[Finding] = []
    precision = "auto"
    ask = remembering(partial(trace_recipe, launcher=launcher), is_fresh=True)
    if source is not None:
        loaded = load_job(resolve_source(source), overrides)
        precision = loaded.job.precision
        notes += _changed(loaded, ranks, steps)
        if may_have_cuda():  # there the micro-batches of `train` depend on what its precision takes
            ask = _asking_also(ask, wanted_precisions(loaded.job, accelerator="cuda"))
        if loaded.job.epochs is None and loaded.job.steps is None:
            overrides = [*overrides, Override("steps", steps, "--steps")]
    overrides = [
        *overrides,
        Override("precision", "fp64", "verify"),
        Override("stop_after", f"{steps} steps", "--steps"),
    ]

    def place(job: Job, machine: Machine) -> Job:
        devices, note = devices_for(job, machine, ranks)
        notes.extend([note] if note else [])
        return job.model_copy(update={"devices": devices})

    prepared = prepare(source, overrides, adapt=place, launcher=launcher, ask_trace=ask)
    return prepared, precision, [*notes, *prepared.findings]


def _one_global_batch(job: Job, ranks: int) -> Finding:
    micro = job.batch_per_gpu or 1
    own = micro * (job.gradient_accumulation or 1)
    total = own * ranks
    return Finding(
        slug="verify-changes",
        what=f"the global batch is {total} on 1 rank too",
        why=f"batch_per_gpu = {micro} makes it {own} on 1 rank and {total} on {ranks} ranks: "
        "`train` is not the same there, by its batch",
        fix=f"nothing to do; or for any number of ranks: global_batch_size={total} "
        f"micro_batch_size={micro} batch_per_gpu=null gradient_accumulation=null",
        severity="note",
    )


def _asking_also(ask: AskTrace, precisions: tuple[str, ...]) -> AskTrace:
    """The same question, about these precisions too."""

    def asking(
        recipe: str, options: dict[str, Any], wanted: tuple[str, ...]
    ) -> tuple[Trace | None, list[Finding]]:
        return ask(recipe, options, tuple(dict.fromkeys([*wanted, *precisions])))

    return asking


def _changed(loaded: LoadedJob, ranks: int, steps: int) -> list[Finding]:
    """What the job says and `verify` does otherwise."""
    job = loaded.job
    if job.strategy == "single":
        raise UserError(
            Finding(
                slug="verify-single",
                what=f"the strategy `single` trains on 1 rank, {ranks} are to be compared with it",
                why=loaded.said("strategy"),
                fix=loaded.line_for("strategy", "ddp"),
            )
        )
    changed = []
    if job.precision not in ("auto", "fp64"):
        changed.append(("precision", "fp64: rounding would hide what is looked for"))
    if job.stop_after is not None:
        changed.append(("stop_after", f"{steps} steps"))
    notes = [_one_global_batch(job, ranks)] if job.batch_per_gpu is not None else []
    return notes + [
        Finding(
            slug="verify-changes",
            what=f"`{key}` is {new}",
            why=f"{loaded.said(key)} is for training",
            fix="nothing to do",
            severity="note",
        )
        for key, new in changed
    ]
