"""`phalanx plan --sweep`: one row per value of a key, or per machine."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.errors import ExitCode, Finding, format_bytes, format_seconds
from phalanx.job import Override
from phalanx.machine import Machine
from phalanx.output import console
from phalanx.verbs.sweep import SweepRow, parse_sweep, sweep

_NUMBERS = (4, 5, 6, 7, 8, 9, 10)
_HEADER = (
    "ranks",
    "strategy",
    "precision",
    "global",
    "micro x acc",
    "lr",
    "memory",
    "of",
    "samples/s",
    "whole job",
)


def show_sweep(
    job: str | None,
    overrides: Sequence[Override | str],
    notes: Sequence[Finding],
    text: str,
    *,
    machine: Machine | None,
    is_fresh: bool,
    as_json: bool,
) -> int:
    """Plan once per value and print a row for each; exit code 2 when every value is wrong."""
    key, _ = parse_sweep(text)
    with console.working("planning once per value"):
        rows = sweep(job, overrides, text, machine=machine, is_fresh=is_fresh)
    if as_json:
        console.say_json(
            {
                "key": key,
                "rows": [row.to_json() for row in rows],
                "findings": [note.to_json() for note in notes],
            }
        )
    else:
        _show(key, rows, machine)
        found = [finding for row in rows for finding in row.findings]
        console.show_findings(dict.fromkeys([*notes, *found]))
    return int(ExitCode.USAGE if all(row.error for row in rows) else ExitCode.OK)


def _show(key: str, rows: list[SweepRow], machine: Machine | None) -> None:
    where = f" on {machine.title}" if machine is not None else ""
    console.table(
        [_cells(row) for row in rows],
        title=f"one plan per {key}{where}",
        header=(key, *_HEADER),
        right=_NUMBERS,
    )
    for row in rows:
        if row.error is not None:
            console.say(f"{row.value}: error[{row.error.slug}]: {row.error.what}")
    if key == "machine":
        console.say("Nothing was measured on other machines than this.", style="dim")


def _cells(row: SweepRow) -> tuple[str, ...]:
    if row.plan is None:
        assert row.error is not None
        return (row.value, f"error[{row.error.slug}]", *("-" for _ in _HEADER[1:]))
    plan = row.plan
    memory = plan.predicted.memory_bytes.value
    return (
        row.value,
        str(plan.devices.ranks.value),
        plan.parallel.strategy.value,
        plan.numerics.precision.value,
        f"{plan.batch.global_batch_size.value:,}",
        f"{plan.batch.micro_batch_size.value:,} x {plan.batch.accumulation.value}",
        f"{plan.learning.lr.value:g}",
        format_bytes(memory) if memory is not None else "-",
        format_bytes(row.device_bytes) if row.device_bytes is not None else "-",
        f"{plan.predicted.samples_per_s.value:,.0f}"
        if plan.predicted.samples_per_s.value is not None
        else "-",
        format_seconds(plan.predicted.duration_s.value)
        if plan.predicted.duration_s.value is not None
        else "-",
    )
