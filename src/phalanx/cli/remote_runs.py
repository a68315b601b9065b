"""`phalanx remote attach|runs|pull|stop`: what is done with runs that are on another machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from phalanx.places.remote.runs import RemoteRun
    from phalanx.places.remote.ssh import Connection

NAME = typer.Argument(metavar="NAME", help="The remote, as `remote add` named it.")
RUN = typer.Argument(metavar="RUN", help="Name of the run; the newest there if left out.")
PATIENCE = typer.Option(
    "--reconnect-s", help="For how long a lost machine is tried again before following ends."
)


def attach(
    name: Annotated[str, NAME],
    run: Annotated[str | None, RUN] = None,
    reconnect_s: Annotated[float, PATIENCE] = 600.0,
) -> int:
    """Follow a run to its end, from its beginning on; exits as the run does.

    Examples: phalanx remote attach lab | phalanx remote attach lab digits-20260131-120000
    """
    from phalanx.output.remote_view import follow

    with _connected(name) as connection:
        return follow(connection, _find(connection, run), patience_s=reconnect_s)


def runs(name: Annotated[str, NAME]) -> int:
    """Show the runs that were started on a machine, the newest last.

    Examples: phalanx remote runs lab
    """
    import time

    from phalanx.output import console
    from phalanx.places.remote.runs import list_runs

    with _connected(name) as connection:
        there = list_runs(connection)
    rows = [
        (
            run.name,
            run.state,
            "" if run.step is None else str(run.step),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(run.time_s)),
            run.run,
        )
        for run in there
    ]
    console.table(rows, header=("run", "state", "step", "started", "folder"), right=(2,))
    return 0


def pull(
    name: Annotated[str, NAME],
    run: Annotated[str | None, RUN] = None,
    output: Annotated[
        Path, typer.Option("--output", metavar="DIR", help="Folder for run directories.")
    ] = Path("runs"),
    best: Annotated[
        bool, typer.Option("--best", help="Of the checkpoints only the best one.")
    ] = False,
) -> int:
    """Bring a run back: checkpoints, logs, best weights; again for what is new since.

    Examples: phalanx remote pull lab | phalanx remote pull lab digits-20260131-120000 --best
    """
    from phalanx.output import console
    from phalanx.places.remote.pulling import pull_run

    with _connected(name) as connection, console.working("looking") as update:
        there = _find(connection, run)
        pulled, what = pull_run(connection, there, output, best_only=best, update=update)
    console.say(f"{what} came to {console.short_path(pulled.path)}")
    if there.ended is None:
        console.say("it is still running: the same command brings what is new")
    return 0


def stop(
    name: Annotated[str, NAME],
    run: Annotated[str | None, RUN] = None,
    reconnect_s: Annotated[float, PATIENCE] = 600.0,
) -> int:
    """Tell a run to finish its step, save and end; waits until it has.

    Examples: phalanx remote stop lab | phalanx remote stop lab digits-20260131-120000
    """
    from phalanx.output import console
    from phalanx.output.remote_view import follow
    from phalanx.places.remote.runs import stop_run

    with _connected(name) as connection:
        there = _find(connection, run)
        if not stop_run(connection, there):
            console.say(f"{there.name} is not running: {there.state}")
            return 0
        follow(connection, there, patience_s=reconnect_s, is_from_now=True)
        console.say(f"{there.name}: {_find(connection, there.name).state}")
    return 0


def _connected(name: str) -> Connection:
    from phalanx.places.remote.places import find_place
    from phalanx.places.remote.ssh import Connection

    return Connection(find_place(name))


def _find(connection: Connection, run: str | None) -> RemoteRun:
    from phalanx.places.remote.runs import find_remote_run

    return find_remote_run(connection, run)
