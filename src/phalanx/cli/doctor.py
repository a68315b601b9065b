"""`phalanx doctor`: why a run died, or why it is slow, from its directory alone."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.errors import ExitCode, short_path
from phalanx.output import console

if TYPE_CHECKING:
    from phalanx.diagnose.attempt_end import Death
    from phalanx.diagnose.examine import Diagnosis
    from phalanx.diagnose.logs import LogLine


def doctor(
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="Default: the newest run.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the diagnosis for another program.")
    ] = False,
    output: Annotated[str, typer.Option("--output", help="Folder for run directories.")] = "runs",
) -> int:
    """Say why a run died: the first rank that failed, the cause, the lines that show it, the fix.

    Of a run that is healthy: why it is slow, and what its curves show. Reads the run directory and
    nothing else. Exit code 1 when the run failed, explained or not; 0 otherwise.

    Examples: phalanx doctor | phalanx doctor runs/first | phalanx doctor --json
    """
    from phalanx.diagnose.examine import examine
    from phalanx.run.directory import find_run

    found = find_run(run, Path(output), command="phalanx doctor", with_scripts=True)
    diagnosis = examine(found)
    if as_json:
        console.say_json(diagnosis.to_json())
    else:
        _show(diagnosis)
    return int(ExitCode.FAILED if diagnosis.is_bad else ExitCode.OK)


def _show(diagnosis: Diagnosis) -> None:
    prefix = f"{diagnosis.cause}: " if diagnosis.cause else ""  # else its status comes first
    console.say(prefix + diagnosis.verdict, style="bold")
    run = short_path(Path(diagnosis.run))
    rows = [("run", f"{run} ({diagnosis.kind})"), ("status", _status(diagnosis))]
    death = diagnosis.death
    if death is not None:
        rows += [("first to fail", _first(death)), *_evidence(death.evidence)]
        rows += [("after it", peer) for peer in death.peers[:8]]
    rows += [("attempt before", _earlier(death)) for death in diagnosis.earlier[-5:]]
    rows += [("speed", text) for text in _speed(diagnosis)]
    for title, metrics in diagnosis.evaluated.items():
        figures = ", ".join(f"{name} {value:g}" for name, value in metrics.items())
        rows.append(("evaluated", f"{title}: {figures}"))
    console.table(rows)
    if diagnosis.fix:
        console.say(f"fix:  {diagnosis.fix}")
    console.show_findings(
        finding for finding in diagnosis.findings if finding.slug != diagnosis.cause
    )


def _status(diagnosis: Diagnosis) -> str:
    at = f" at step {diagnosis.step}" if diagnosis.step is not None else ""
    saved = diagnosis.saved_step
    kept = f", a checkpoint of step {saved}" if saved is not None else ""
    return f"{diagnosis.status}{at}{kept}"


def _first(death: Death) -> str:
    when = ""
    if death.time_s is not None:
        when = f" at {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(death.time_s))}"
    code = f", exit code {death.exit_code}" if death.exit_code is not None else ""
    return f"{death.place}{when}{code}"


def _evidence(lines: list[LogLine]) -> list[tuple[str, str]]:
    return [("evidence", f"{line}: {line.text.strip()[:300]}") for line in lines[:6]]


def _earlier(death: Death) -> str:
    return f"{death.cause}: {death.place}: {death.words}"


def _speed(diagnosis: Diagnosis) -> list[str]:
    speed = diagnosis.speed
    rate, predicted, wait = speed.samples_per_s, speed.predicted_samples_per_s, speed.data_wait
    if rate is None:
        return []
    text = f"{rate:,.0f} samples/s"
    text += f", {predicted:,.0f} predicted" if predicted else ""
    return [text + (f", {wait:.0%} of the time waiting for samples" if wait is not None else "")]
