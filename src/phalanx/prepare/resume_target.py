"""What `--resume` names: a run that goes on, or a checkpoint that a new run begins from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from phalanx.errors import Finding, UserError
from phalanx.job import Override
from phalanx.planner.schema.plan import Plan
from phalanx.run.directory import RunDirectory, find_run


@dataclass(frozen=True)
class Continued:
    """A run that is to go on."""

    run: RunDirectory | None
    """None when it goes on from one checkpoint, in a new run directory."""
    job_file: Path
    plan: Plan
    checkpoint: Path | None

    @classmethod
    def find(cls, reference: str, overrides: Sequence[Override | str]) -> Continued:
        output = output_of(overrides)
        path = Path(reference)
        if (path / "manifest.json").is_file():
            run = RunDirectory(path.resolve().parent.parent)
            return cls(None, run.job_file, _read_plan(run), path.resolve())
        run = find_run(None if reference == "latest" else reference, output)
        return cls(run, run.job_file, _read_plan(run), None)

    def adopt(self, plan: Plan) -> Plan:
        if self.checkpoint is None:
            return plan.replace(resume_from=self.plan.history.resume_from)
        return plan.replace(resume_from=str(self.checkpoint), revision=0)


def _read_plan(run: RunDirectory) -> Plan:
    try:
        return Plan.from_json(json.loads(run.plan_file.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            Finding(
                slug="plan-unreadable",
                what=f"`{run.plan_file}` cannot be read",
                why=str(error),
                fix=f"start a new run from its weights: `init_from={run.path}`",
            )
        ) from error


def output_of(overrides: Sequence[Override | str]) -> Path:
    """The folder of runs that options name, before a job is read."""
    given = (o.value for o in overrides if isinstance(o, Override) and o.key == "output")
    return Path(str(next(given, "runs")))
