"""The plan of a run as its readers want it who can do with a part: names and values, no types."""

from __future__ import annotations

from typing import Any

from phalanx.run.directory import RunDirectory
from phalanx.run.reading import read_json

Record = dict[str, Any]


def read_plan_record(run: RunDirectory) -> Record:
    """Read `plan.json` without its sections; empty where it is missing or damaged."""
    return without_sections(read_json(run.plan_file))


def without_sections(record: Record) -> Record:
    """Return the fields of a plan by their names alone, as all were in schema 1."""
    if record.get("schema_version", 1) == 1:
        return record
    fields = {name: value for name, value in record.items() if not isinstance(value, dict)}
    for section in record.values():
        if isinstance(section, dict):
            fields |= section
    return fields


def choice_in(record: Record, name: str) -> Any:
    """Return the value of a choice; None where there is none."""
    choice = record.get(name)
    return choice.get("value") if isinstance(choice, dict) else None
