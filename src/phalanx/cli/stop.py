"""`phalanx stop`: have a run that goes on elsewhere on this machine save and end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.errors import ExitCode, UserError, short_path
from phalanx.output import console

if TYPE_CHECKING:
    from phalanx.run.events import Event
    from phalanx.verbs.stop import Stopped


def stop(
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="Default: the newest run.")
    ] = None,
    now: Annotated[
        bool, typer.Option("--now", help="End at once; the last checkpoint stands.")
    ] = False,
    output: Annotated[str, typer.Option("--output", help="Folder for run directories.")] = "runs",
) -> int:
    """Stop a run: the step is finished and saved, then it ends; wait until it has.

    A launched script is sent SIGTERM. Ctrl-C here ends the waiting, not the stopping.

    Examples: phalanx stop | phalanx stop runs/first | phalanx stop runs/first --now
    """
    from phalanx.run.event_kinds import Checkpoint, Step, StopAsked
    from phalanx.verbs.stop import stop_run

    try:
        with console.working("asking it to stop") as update:

            def show(event: Event) -> None:
                match event.body:
                    case StopAsked():
                        update("ending it" if now else "its step is finished and saved")
                    case Step(step=step):
                        update(f"step {step}")
                    case Checkpoint(step=step):
                        update(f"checkpoint {step}")

            stopped = stop_run(run, Path(output), is_now=now, on_event=show)
    except UserError as error:
        if error.exit_code != ExitCode.OK:
            raise
        console.show_findings(error.findings)  # it does not run, which is what was wanted
        return 0
    _show(stopped)
    return int(ExitCode.FAILED if stopped.status == "failed" else ExitCode.OK)


def _show(stopped: Stopped) -> None:
    from phalanx.verbs.stop import resume_command

    run = short_path(stopped.run.path)
    at = f" at step {stopped.step}" if stopped.step is not None else ""
    reason = "" if stopped.reason == stopped.status else f": {stopped.reason}"
    console.table([("status", f"{stopped.status}{at}{reason}"), ("run", str(run))])
    command = resume_command(stopped.run, run)
    if command is not None and stopped.status != "finished":
        console.say(f"continue:  {command}")
