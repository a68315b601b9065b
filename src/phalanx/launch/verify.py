"""Runs a job on one rank and on many, each recorded, and compares: `phalanx verify`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from phalanx.diagnose.cause import explain, explain_crash
from phalanx.diagnose.compare import TOLERANCE, Comparison, compare
from phalanx.diagnose.recording import Recording, read_recording
from phalanx.errors import ExitCode, Finding, UserError
from phalanx.job import LoadedJob, Override, load_job
from phalanx.job.schema import Job
from phalanx.launch.hang import watch_for
from phalanx.launch.launcher import Launcher
from phalanx.launch.outcomes import Outcome
from phalanx.launch.prepare import Prepared, Source, open_run, prepare, resolve_source
from phalanx.launch.run_folder import RunFailedError, run_folder
from phalanx.launch.supervisor import Supervisor
from phalanx.machine import Machine
from phalanx.planner.comparable import Side, comparable_sides, devices_for
from phalanx.planner.plan import Plan
from phalanx.run.directory import RunDirectory
from phalanx.run.events import Event


@dataclass(frozen=True)
class Verification:
    """Whether training on many ranks was training on one."""

    comparison: Comparison
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
        return self.comparison.is_same

    def to_json(self) -> dict[str, Any]:
        plan = self.plan
        return {
            "passed": self.passed,
            "recipe": self.recipe,
            "ranks": plan.ranks.value,
            "steps": self.steps,
            "device": plan.device.value,
            "strategy": plan.strategy.value,
            "precision": plan.precision.value,
            "global_batch_size": plan.global_batch_size.value,
            "micro_batch_size": plan.micro_batch_size.value,
            **self.comparison.to_json(),
            "findings": [finding.to_json() for finding in self.findings],
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
        prepared, notes = _prepare(source, overrides, ranks=ranks, steps=steps, launcher=launcher)
        steps = min(steps, prepared.plan.total_steps.value)
        one, many, found = comparable_sides(
            prepared.job, prepared.machine, prepared.trace, prepared.plan, steps=steps
        )
        runs = _Runs(prepared, launcher, folder, steps, say)
        first, second = runs.record(one, many)
        compared = compare(first, second, tolerance)
        difference = explain(compared, first, second)
        return Verification(
            comparison=compared,
            recipe=prepared.job.recipe,
            plan=runs.plan,
            steps=steps,
            findings=[*notes, *found, *runs.findings, *([difference] if difference else [])],
            kept=keep,
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
    there = [name for name in (_run_name(1), _run_name(ranks)) if keep and (keep / name).exists()]
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


def _run_name(ranks: int) -> str:
    return "1-rank" if ranks == 1 else f"{ranks}-ranks"


def _prepare(
    source: Source | None,
    overrides: Sequence[Override | str],
    *,
    ranks: int,
    steps: int,
    launcher: Launcher,
) -> tuple[Prepared, list[Finding]]:
    notes: list[Finding] = []
    if source is not None:
        loaded = load_job(resolve_source(source), overrides)
        notes += _changed(loaded, ranks, steps)
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

    prepared = prepare(source, overrides, adapt=place, launcher=launcher)
    return prepared, [*notes, *prepared.findings]


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
    return [
        Finding(
            slug="verify-changes",
            what=f"`{key}` is {new}",
            why=f"{loaded.said(key)} is for training",
            fix="nothing to do",
            severity="note",
        )
        for key, new in changed
    ]


class _Runs:
    """The two runs, one after the other, until both had the same micro-batches."""

    def __init__(
        self,
        prepared: Prepared,
        launcher: Launcher,
        folder: Path,
        steps: int,
        say: Callable[[str], None],
    ) -> None:
        self._prepared = prepared
        self._launcher = launcher
        self._folder = folder
        self._steps = steps
        self._say = say
        self.findings: list[Finding] = []
        """Said by the ranks, each once."""
        self.plan = prepared.plan
        """As it was in the end on many ranks."""
        self._made: list[RunDirectory] = []

    def record(self, one: Side, many: Side) -> tuple[Recording, Recording]:
        """Run both. When a rank ran out of memory its plan got a smaller micro-batch, and then the
        other side needs it too; sizes only shrink, so this ends."""
        while True:
            recordings = []
            for side in (one, many):
                recording, plan = self._run(side)
                recordings.append(recording)
                if plan.batch != side.plan.batch:
                    self._forget()
                    one, many = one.cut(plan.micro_batch_size), many.cut(plan.micro_batch_size)
                    break
            else:
                self.plan = many.plan
                return recordings[0], recordings[1]

    def _run(self, side: Side) -> tuple[Recording, Plan]:
        ranks = side.plan.ranks.value
        name = _run_name(ranks)
        self._say(f"training {self._steps} steps on {name.replace('-', ' ')}")
        update = {"output": str(self._folder), "name": name}
        prepared = replace(
            self._prepared, job=side.job.model_copy(update=update), plan=side.plan, findings=[]
        )
        with open_run(prepared) as run:
            self._made.append(run)
            outcome = Supervisor(
                run,
                side.plan,
                launcher=self._launcher,
                max_restarts=side.job.max_restarts,
                watch=watch_for(side.job, side.plan),
                sinks=None,
                on_event=self._take,
            ).run()
        self._judge(outcome, ranks)
        plan = Plan.from_json(json.loads(run.plan_file.read_text(encoding="utf-8")))
        recording = read_recording(run.recordings, ranks)
        return recording, plan

    def _forget(self) -> None:
        """Make room for runs of the same names."""
        while self._made:
            shutil.rmtree(self._made.pop().path)

    def _judge(self, outcome: Outcome, ranks: int) -> None:
        if outcome.status == "failed":
            cause = explain_crash(outcome.findings) if ranks == 1 else None
            findings = [*outcome.findings, *([cause] if cause else [])]
            raise RunFailedError(findings, exit_code=outcome.exit_code)
        if outcome.step != self._steps:
            raise UserError(
                Finding(
                    slug="verify-stopped",
                    what=f"stopped after {outcome.step or 0} of {self._steps} steps",
                    why=f"{outcome.reason}; nothing was compared",
                    fix="run it again",
                ),
                exit_code=ExitCode.INTERRUPTED,
            )

    def _take(self, event: Event) -> None:
        if event.kind == "finding":
            finding = Finding.from_json(event.data["finding"])
            if finding not in self.findings:
                self.findings.append(finding)
