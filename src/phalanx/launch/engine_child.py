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
from phalanx.launch.launcher import Launcher


def ask_engine(
    verb: str,
    question: dict[str, Any],
    *,
    timeout_s: float,
    launcher: Launcher | None = None,
    uses_gpu: bool = False,
) -> tuple[dict[str, Any] | None, str]:
    """The answer to a question, or why there is none. A launcher that has begun answers it with the
    torch that it imports anyway. `export` is answered by the package of that name."""
    module = ["phalanx.exporter"] if verb == "export" else ["phalanx.engine", verb]
    with tempfile.TemporaryDirectory(prefix=f"phalanx-{verb}-") as folder:
        request, result, said = (Path(folder, name) for name in ("request", "result", "said"))
        request.write_text(json.dumps(question), encoding="utf-8")
        env = {**os.environ, **({} if uses_gpu else {"CUDA_VISIBLE_DEVICES": ""})}
        try:
            code = None
            if launcher is not None:
                code = launcher.ask(verb, (request, result, said), env, timeout_s)
            if code is None:
                argv = [sys.executable, "-m", *module, str(request), str(result)]
                with said.open("wb") as output:
                    code = subprocess.run(
                        argv,
                        env=env,
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        stderr=output,
                        timeout=timeout_s,
                        check=False,
                    ).returncode
        except (TimeoutError, subprocess.TimeoutExpired):
            return None, f"it did not answer within {timeout_s:g} s"
        if not result.is_file():
            lines = said.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:]
            return None, f"exit code {code}: {' | '.join(lines)}"
        answer: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        return answer, ""


def findings_of(answer: dict[str, Any]) -> list[Finding]:
    """The Findings in an answer."""
    return [Finding.from_json(record) for record in answer["findings"]]
