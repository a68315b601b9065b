"""`phalanx watch`: runs as they happen, in this terminal or in a browser."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.errors import ExitCode, Finding, UserError, short_path
from phalanx.output import console

if TYPE_CHECKING:
    from phalanx.run.directory import RunDirectory
    from phalanx.watch.watched_run import WatchedRun


def watch(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN|latest]...",
            help="A run, a Slurm job's number, with --web also several or folders of runs. "
            "Default: the newest; with --web all of --output.",
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Show it as it is now, and end.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="The same as data for another program, and end.")
    ] = False,
    remote: Annotated[
        str | None,
        typer.Option("--remote", metavar="NAME", help="A run on that machine, over ssh."),
    ] = None,
    web: Annotated[bool, typer.Option("--web", help="Show runs in a browser.")] = False,
    host: Annotated[
        str, typer.Option("--host", help="Interface of the page; whoever reaches it needs a link.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="0: any that is free.", min=0, max=65535)] = 0,
    metrics_token_file: Annotated[
        Path | None,
        typer.Option(
            "--metrics-token-file",
            metavar="FILE",
            help="Holds the bearer token for /metrics, for Prometheus. Default: a new one.",
        ),
    ] = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Start TensorBoard on the run.")
    ] = False,
    output: Annotated[str, typer.Option("--output", help="Folder for run directories.")] = "runs",
) -> int:
    """Watch a run: progress beside the plan, curves, every rank and GPU, restarts, findings.

    Live until it ends; a run that is over, or died, is shown as it was left. Reads the run
    directory and never writes to it. Exit code 1 when the run failed.

    Examples: phalanx watch | phalanx watch runs/first --once | phalanx watch --remote lab |
    phalanx watch --web | phalanx watch --web --port 8080 runs/first runs/second
    """
    if sum((web, tensorboard, once or as_json)) > 1:
        raise UserError(
            Finding(
                slug="watch-how",
                what="--web, --tensorboard and --once exclude each other",
                why="each is another way to show a run",
                fix="phalanx watch --web",
            )
        )
    from phalanx.verbs.watch import find_run_to_watch

    named = runs or []
    if web:
        from phalanx.output.web_page import serve_runs

        return serve_runs(
            named,
            output=Path(output),
            remote=remote,
            host=host,
            port=port,
            token_file=metrics_token_file,
        )
    name = _one(named)
    if tensorboard:
        return _tensorboard(find_run_to_watch(name, Path(output)), host, port)
    if remote is not None:
        from phalanx.watch.mirror import mirrored

        with mirrored(remote, name) as watched:
            return _show(watched, is_once=once, as_json=as_json)
    from phalanx.watch.watched_run import WatchedRun

    run = find_run_to_watch(name, Path(output))
    return _show(WatchedRun(run), is_once=once, as_json=as_json)


def _one(named: list[str]) -> str | None:
    if len(named) > 1:
        raise UserError(
            Finding(
                slug="watch-one",
                what=f"{len(named)} runs are named, a terminal shows one",
                why=", ".join(named),
                fix=f"phalanx watch --web {' '.join(named)}",
            )
        )
    return named[0] if named else None


def _show(watched: WatchedRun, *, is_once: bool, as_json: bool) -> int:
    from phalanx.diagnose.examine import BAD

    if as_json:
        from phalanx.watch.report import report

        watched.reader.read_all()
        console.say_json(report(watched))
    elif is_once or not console.stdout().is_interactive:
        from phalanx.watch.terminal import Room, render

        watched.reader.read_all()
        console.draw(lambda width, height: render(watched, Room(width)))
    else:
        _follow(watched)
    return int(ExitCode.FAILED if watched.status() in BAD else ExitCode.OK)


def _follow(watched: WatchedRun) -> None:
    """Live until the run has ended."""
    from phalanx.watch.terminal import Room, render

    with console.live(lambda width, height: render(watched, Room.of(width, height))) as draw:
        while True:
            is_over = watched.status() != "running"  # asked first: what came before is read after
            is_more = watched.reader.read()
            draw()
            if is_over and not is_more:
                return
            if not is_more:
                time.sleep(1.0)


def _tensorboard(run: RunDirectory, host: str, port: int) -> int:
    from phalanx.watch.boards import start_tensorboard

    console.say(f"TensorBoard on {short_path(run.tensorboard)}; Ctrl-C ends it")
    return start_tensorboard(run, host=host, port=port)
