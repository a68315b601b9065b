"""A question to the engine, answered by a child process: torch and a recipe's code run there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from phalanx.errors import Finding


def ask_engine(
    verb: str, question: dict[str, Any], *, timeout_s: float
) -> tuple[dict[str, Any] | None, str]:
    """The answer to a question, or why there is none."""
    with tempfile.TemporaryDirectory(prefix=f"phalanx-{verb}-") as folder:
        request, result = Path(folder, "request.json"), Path(folder, "result.json")
        request.write_text(json.dumps(question), encoding="utf-8")
        argv = [sys.executable, "-m", "phalanx.engine", verb, str(request), str(result)]
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}  # nothing asked here touches a GPU
        try:
            done = subprocess.run(
                argv,
                env=env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None, f"it did not answer within {timeout_s:g} s"
        if not result.is_file():
            lines = done.stderr.strip().splitlines()[-3:]
            return None, f"exit code {done.returncode}: {' | '.join(lines)}"
        answer: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        return answer, ""


def findings_of(answer: dict[str, Any]) -> list[Finding]:
    """The Findings in an answer."""
    return [Finding.from_json(record) for record in answer["findings"]]
