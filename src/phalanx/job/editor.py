"""What editors know of a job file: its JSON Schema, which is in the package, and the line that
names it. VS Code (extension YAML), Neovim and others that run yaml-language-server complete and
check keys by it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from phalanx.job.schema import Job

SCHEMA_FILE = Path(__file__).with_name("job.schema.json")
_LINE = "# yaml-language-server: $schema="


def editor_line() -> str:
    """The first line of a job file that is written on this machine."""
    return f"{_LINE}{SCHEMA_FILE.as_posix()}\n"


def with_editor_line(text: str) -> str:
    """A job file with that line on top, in place of another one of its kind."""
    kept = [line for line in text.splitlines(keepends=True) if not line.startswith(_LINE)]
    return editor_line() + "".join(kept)


def schema_text() -> str:
    """The schema as it stands in the package."""
    return json.dumps(job_schema(), indent=1) + "\n"


def job_schema() -> dict[str, Any]:
    """The JSON Schema of a job file, from the model that reads it."""
    schema = Job.model_json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "Phalanx job",
        "description": "What a training run was asked to do; `phalanx explain` prints the keys.",
    }
