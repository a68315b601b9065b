"""A job against a machine over there: guide G3's list before anything is sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from phalanx.errors import Finding, UserError, errors_of, format_bytes
from phalanx.job import Override
from phalanx.places.remote import transfer
from phalanx.places.remote.checks import Examination, examine
from phalanx.places.remote.request import make_request, missing_findings, project_of
from phalanx.places.remote.ssh import Connection
from phalanx.planner.schema.plan import Plan
from phalanx.prepare.plan import prepare


def check_job_there(
    connection: Connection,
    job: str | None,
    overrides: Sequence[Override | str],
    *,
    include: Sequence[str] = (),
) -> Examination:
    """What there is, what is wrong with it, and where a job is given how it would be trained."""
    if job is None:
        return examine(connection, project=project_of(Path.cwd()))
    request, _, findings = make_request(job, overrides)
    rules = transfer.filters(Path.cwd(), include=include, leave_out=request.leave_out)
    load = transfer.measure(None, Path.cwd(), "", rules)
    seen = examine(
        connection, project=request.project, files=request.files, needs_bytes=load.num_bytes
    )
    seen.rows.append(("push", f"{load.files} files, {format_bytes(load.num_bytes)} at most"))
    sent = transfer.would_send(Path.cwd(), rules, seen.missing)
    absent = [path for path in seen.missing if path not in sent]
    seen.findings += findings
    seen.findings += missing_findings(connection.place, absent, is_pushed=False)
    data = ", ".join(request.files) or "the job names no file that is here"
    seen.rows.append(("files", data + (f"; missing there: {', '.join(absent)}" if absent else "")))
    if seen.machine is not None and not errors_of(findings):
        try:
            prepared = prepare(
                job, overrides, machine=seen.machine, is_elsewhere=True, is_fresh=False
            )
        except UserError as error:
            seen.findings += error.findings
        else:
            seen.rows += _plan_rows(prepared.plan)
            seen.findings += _news(prepared.findings, seen.findings)
    seen.findings = list(dict.fromkeys(seen.findings))
    return seen


def _plan_rows(plan: Plan) -> list[tuple[str, str]]:
    rows = [
        ("ranks", f"{plan.devices.ranks.value}: {plan.devices.ranks.reason}"),
        ("precision", f"{plan.numerics.precision.value}: {plan.numerics.precision.reason}"),
        ("batch", plan.batch.accumulation.reason),
    ]
    if plan.devices.gpus.value:
        rows.insert(
            1,
            ("GPUs", f"{','.join(map(str, plan.devices.gpus.value))}: {plan.devices.gpus.reason}"),
        )
    return rows


def _news(found: Sequence[Finding], known: Sequence[Finding]) -> list[Finding]:
    """Warnings of the plan that were not said before."""
    said = {finding.slug for finding in known}
    return [replace(f) for f in found if f.severity == "warning" and f.slug not in said]
