"""Asks the engine, in a child process, what a recipe is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from phalanx.errors import Finding
from phalanx.planner.trace import Trace

_TIMEOUT_S = 600

Answer = tuple[Trace | None, list[Finding]]
AskTrace = Callable[[str, dict[str, Any], tuple[str, ...]], Answer]
"""Of a recipe, its options, and the precisions in which compiled code is wanted too."""


def trace_recipe(spec: str, options: dict[str, Any], compiled: tuple[str, ...] = ()) -> Answer:
    """The Trace of a recipe with these options, and what is wrong with either."""
    with tempfile.TemporaryDirectory(prefix="phalanx-trace-") as folder:
        request, result = Path(folder, "request.json"), Path(folder, "result.json")
        asked = {"recipe": spec, "options": options, "compiled": compiled}
        request.write_text(json.dumps(asked), encoding="utf-8")
        argv = [sys.executable, "-m", "phalanx.engine", "trace", str(request), str(result)]
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}  # planning touches no GPU
        try:
            done = subprocess.run(
                argv,
                env=env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None, [_silent(spec, f"it did not answer within {_TIMEOUT_S} s")]
        if not result.is_file():
            lines = done.stderr.strip().splitlines()[-3:]
            return None, [_silent(spec, f"exit code {done.returncode}: {' | '.join(lines)}")]
        answer = json.loads(result.read_text(encoding="utf-8"))
    trace = Trace.from_json(answer["trace"]) if answer["trace"] else None
    return trace, [Finding.from_json(record) for record in answer["findings"]]


def _silent(spec: str, why: str) -> Finding:
    return Finding(
        slug="trace-failed",
        what=f"the recipe `{spec}` could not be looked at",
        why=f"the child process that builds its model and data ended early: {why}",
        fix="phalanx check",
    )
