"""A question to the engine, answered by a child process: torch and a recipe's code run there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from phalanx.codec import Json, from_json, to_json
from phalanx.errors import ExitCode, Finding, UserError, errors_of
from phalanx.prepare.launcher import LOOK_S, Launcher
from phalanx.recipe.progress import PROGRESS_FILE

_ANSWERED_BY = {"trace": ("phalanx.tracing",), "export": ("phalanx.exporter",)}


def ask_engine(
    verb: str,
    question: Json,
    *,
    timeout_s: float,
    launcher: Launcher | None = None,
    uses_gpu: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[Json, str]:
    """The answer to a question, or None and why there is none. A launcher that has begun answers it
    with the torch that it imports anyway. `say` is told what a recipe reports meanwhile; the time
    that is left begins anew with each report."""
    module = _ANSWERED_BY.get(verb, ("phalanx.engine", verb))
    with tempfile.TemporaryDirectory(prefix=f"phalanx-{verb}-") as folder:
        request, result, said = (Path(folder, name) for name in ("request", "result", "said"))
        request.write_text(json.dumps(question), encoding="utf-8")
        env = {**os.environ, **({} if uses_gpu else {"CUDA_VISIBLE_DEVICES": ""})}
        env[PROGRESS_FILE] = str(Path(folder, "progress"))
        reports = _Reports(Path(env[PROGRESS_FILE]), say, timeout_s)
        try:
            code = None
            if launcher is not None:
                code = launcher.ask(module, (request, result, said), env, reports.is_patient)
            if code is None:
                argv = [sys.executable, "-m", *module, str(request), str(result)]
                code = _run(argv, env, said, reports)
        except TimeoutError:
            return None, f"it did not answer within {timeout_s:g} s"
        if not result.is_file():
            lines = said.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:]
            return None, f"exit code {code}: {' | '.join(lines)}"
        return json.loads(result.read_text(encoding="utf-8")), ""


class _Reports:
    """What a recipe reports on its way, and how long it has been silent."""

    def __init__(self, file: Path, say: Callable[[str], None], timeout_s: float) -> None:
        self._file = file
        self._say = say
        self._timeout_s = timeout_s
        self._last = ""
        self._heard = time.monotonic()

    def is_patient(self) -> bool:
        """Look for something new; False once there was nothing for too long."""
        try:
            text = self._file.read_text(encoding="utf-8")
        except OSError:
            text = self._last
        if text != self._last:
            self._last, self._heard = text, time.monotonic()
            self._say(text)
        return time.monotonic() - self._heard < self._timeout_s


def _run(argv: list[str], env: dict[str, str], said: Path, reports: _Reports) -> int:
    """The exit code of a child process, which is ended when it takes too long or nobody waits."""
    with (
        said.open("wb") as output,
        subprocess.Popen(
            argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=output
        ) as child,
    ):
        try:
            while reports.is_patient():
                try:
                    return child.wait(LOOK_S)
                except subprocess.TimeoutExpired:
                    continue
            raise TimeoutError
        except BaseException:
            child.kill()
            raise


class _Answer(Protocol):
    @property
    def findings(self) -> list[Finding]: ...


A = TypeVar("A", bound=_Answer)


def require_answer(
    verb: str,
    question: object,
    kind: type[A],
    *,
    timeout_s: float,
    silent: Callable[[str], Finding],
    notes: Sequence[Finding] = (),
    tolerated: str = "",
    uses_gpu: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[A, list[Finding]]:
    """Return the answer to a question of `recipe/questions.py`, and `notes` with the Findings in
    it. Raises UserError if one of them is an error, other than the `tolerated` one. `silent` is
    told why there is no answer, and makes the Finding about it."""
    record, why = ask_engine(
        verb, to_json(question), timeout_s=timeout_s, uses_gpu=uses_gpu, say=say
    )
    if record is None:
        raise UserError(silent(why), exit_code=ExitCode.FAILED)
    try:
        answer = from_json(kind, record)
    except ValueError as error:
        raise UserError(silent(f"its answer: {error}"), exit_code=ExitCode.FAILED) from error
    findings = [*notes, *answer.findings]
    wrong = {finding.slug for finding in errors_of(findings)} - {tolerated}
    if wrong:
        is_crash = f"{verb}-failed" in wrong
        raise UserError(findings, exit_code=ExitCode.FAILED if is_crash else ExitCode.USAGE)
    return answer, findings
