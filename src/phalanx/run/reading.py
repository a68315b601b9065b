"""Read files that may be missing, damaged or half written; what cannot be read is left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_LONGEST_YAML = 2**20  # its parser takes seconds for more


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file, or an empty one if there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file, or an empty one if there is none."""
    import yaml  # takes milliseconds, which a list of runs has not got

    try:
        if path.stat().st_size > _LONGEST_YAML:
            return {}
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def read_end(path: Path, size: int) -> bytes:
    """Return the last bytes of a file, or nothing if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - size))
            return file.read(size)
    except OSError:
        return b""
