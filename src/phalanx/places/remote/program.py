"""The text that the Python over there is given on stdin: the far side's source and a request."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

from phalanx.places.remote import far_look, far_runs, far_side


def program_for(operation: str, request: dict[str, Any]) -> str:
    """The program for one operation. The request is JSON in JSON: a literal of Python that holds
    ASCII only."""
    part = next(module for module in (far_look, far_runs) if operation in module.OPERATIONS)
    text = json.dumps({"operation": operation, **request})
    sources = (_source(far_side), _later(_source(part)))
    return "\n".join(sources) + f"\nanswer({json.dumps(text)}, OPERATIONS)\n"


def _source(module: ModuleType) -> str:
    assert module.__file__ is not None, "a module of ours is a file"
    return Path(module.__file__).read_text(encoding="utf-8")


def _later(source: str) -> str:
    """A source that comes after another: what it imports of that one is there already."""
    lines = source.splitlines(keepends=True)
    return "".join(li for li in lines if not li.startswith(("from __future__", "from phalanx.")))
