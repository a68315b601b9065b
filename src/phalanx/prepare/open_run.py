"""A run directory is made, or continued, and held."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from phalanx.codec import to_json
from phalanx.errors import Finding, UserError
from phalanx.job.editor import with_editor_line
from phalanx.machine import Machine
from phalanx.planner.resume import resume_findings
from phalanx.planner.schema.plan import Plan
from phalanx.planner.solve import solve_plan
from phalanx.prepare.job import raise_if_errors
from phalanx.prepare.plan import Prepared
from phalanx.run.directory import RunDirectory, create_run_directory, write_atomic
from phalanx.run.lock import lock_run
from phalanx.run.purpose import TRAIN, Purpose, write_purpose
from phalanx.run.source import record_source


@contextmanager
def open_run(
    prepared: Prepared,
    *,
    purpose: Purpose = TRAIN,
    tell: Callable[[Finding], None] = lambda finding: None,
) -> Iterator[RunDirectory]:
    """Make the run directory, or write the next plan revision into the one that continues, and
    hold it: a second process that wants the same run waits or is refused before it changes
    anything; `tell` hears for whom it waits."""
    _refuse_elsewhere(prepared)
    run = prepared.run
    if run is None:
        run = create_run_directory(
            Path(prepared.job.output), prepared.job.name, prepared.job.recipe
        )
        write_atomic(run.source_file, json.dumps(record_source(sys.argv), indent=2))
    with lock_run(run, command=sys.argv, tell=tell):
        job = prepared.job.model_dump(mode="json", exclude_unset=True)
        text = with_editor_line(yaml.safe_dump(job, sort_keys=False))
        write_atomic(run.job_file, text)
        write_atomic(run.machine_file, json.dumps(to_json(prepared.machine), indent=2))
        run.write_plan(prepared.plan.to_json())
        write_purpose(run, purpose)
        yield run


def _refuse_elsewhere(prepared: Prepared) -> None:
    machine = prepared.machine
    if machine.nodes > 1 and not machine.hosts:
        raise UserError(
            Finding(
                slug="several-nodes",
                what=f"the plan is for {machine.nodes} nodes that have not met",
                why=f"the machine is `{machine.title}`, with "
                f"{prepared.plan.devices.ranks.value} ranks in all; it was described, not asked",
                fix=f"on every node: phalanx train JOB --nodes {machine.nodes} --rendezvous "
                "HOST:29500",
            )
        )
    if prepared.is_elsewhere:
        raise UserError(
            Finding(
                slug="other-machine",
                what=f"the plan is for `{machine.title}`, which is not this machine",
                why="it was made for a machine that was described, not for what is here",
                fix="phalanx train without a machine plans for the one at hand",
            )
        )


def replanned(prepared: Prepared, machine: Machine, plan: Plan) -> Plan:
    """The plan of a run that goes on with another machine: fewer nodes. Raises UserError when there
    is none."""
    new, findings = solve_plan(prepared.job, machine, prepared.trace, previous=plan)
    findings += resume_findings(plan, new, accept_changes=False)
    raise_if_errors(findings)
    return new.replace(resume_from=plan.history.resume_from)
