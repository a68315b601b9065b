"""`phalanx remote`: a machine over ssh, to train on and to bring runs back from."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli.options.job import GivenJob, with_job_options
from phalanx.errors import ExitCode, UserError, errors_of, short_path
from phalanx.output import console

if TYPE_CHECKING:
    from phalanx.places.remote.answers import RemoteRun
    from phalanx.places.remote.ssh import Connection

NAME = typer.Argument(metavar="NAME", help="The remote, as `remote add` named it.")
RUN = typer.Argument(metavar="RUN", help="Name of the run; the newest there if left out.")
PATIENCE = typer.Option(
    "--reconnect-s", help="For how long a lost machine is tried again before following ends."
)

app = typer.Typer(
    no_args_is_help=True,
    help="Train on a machine over ssh: `remote add NAME user@host`, then `remote train NAME JOB`.",
)


@app.command("add")
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What to call it.")],
    target: Annotated[
        str,
        typer.Argument(
            metavar="USER@HOST[:PORT]", help="As for ssh; aliases of ~/.ssh/config hold."
        ),
    ],
    path: Annotated[
        str,
        typer.Option(
            "--path", metavar="DIR", help="Folder there; relative: below the home folder."
        ),
    ] = "phalanx",
    python: Annotated[
        str | None,
        typer.Option(
            "--python", metavar="PATH", help="Use this environment there, install nothing."
        ),
    ] = None,
    site_packages: Annotated[
        bool,
        typer.Option(
            "--site-packages",
            help="The environment that is made also sees what the machine's own Python has.",
        ),
    ] = False,
) -> int:
    """Name a machine. Keys, ports and jump hosts are OpenSSH's own; no secret is kept.

    Examples: phalanx remote add lab alice@gpu.example.org | phalanx remote add big big-alias
    --path /scratch/alice --python /opt/torch/bin/python
    """
    from phalanx.places.remote.places import add_place, config_file, make_place

    place = make_place(name, target, path=path, python=python, site_packages=site_packages)
    before = add_place(place)
    was = f", which was {before.target}" if before and before.target != place.target else ""
    console.say(f"{place.name} is {place.target}{was} ({short_path(config_file())})")
    console.say("next:")
    console.say(f"  phalanx remote check {place.name}")
    return 0


@app.command("list")
def list_remotes() -> int:
    """Show the machines that have a name.

    Examples: phalanx remote list
    """
    from phalanx.places.remote.places import load_places

    rows = [
        (place.name, place.target, place.path, place.python or f"{place.path}/env")
        for place in load_places().values()
    ]
    if not rows:
        console.say("no remote yet: phalanx remote add lab alice@gpu.example.org")
        return 0
    console.table(rows, header=("name", "target", "path", "environment"))
    return 0


@app.command("remove")
def remove(name: Annotated[str, NAME]) -> int:
    """Forget a machine; what lies on it stays.

    Examples: phalanx remote remove lab
    """
    from phalanx.places.remote.places import remove_place

    place = remove_place(name)
    console.say(f"{place.name} is forgotten; {place.path} on {place.target} stays as it is")
    return 0


@app.command("check")
@with_job_options
def check(
    given: GivenJob,
    remote: Annotated[str, NAME],
    include: Annotated[
        list[str] | None, typer.Option("--include", help="As for `remote train`.")
    ] = None,
) -> int:
    """Show what a machine can train on and what stands in the way, all at once; with a job also its
    files, its size and its plan there.

    Examples: phalanx remote check lab | phalanx remote check lab job.yaml --gpus 0,1
    """
    from phalanx.cli.check import show_machine
    from phalanx.places.remote.job_checks import check_job_there
    from phalanx.places.remote.places import find_place
    from phalanx.places.remote.ssh import Connection

    place = find_place(remote)
    with console.working(f"looking at {place.target}"), Connection(place) as connection:
        seen = check_job_there(connection, given.job, given.overrides, include=include or [])
    console.table(seen.rows)
    if seen.machine is not None:
        console.say()
        show_machine(seen.machine)
    if seen.findings or given.notes:
        console.say()
    console.show_findings([*given.notes, *seen.findings])
    return int(ExitCode.MACHINE if errors_of(seen.findings) else ExitCode.OK)


@app.command("train")
@with_job_options
def train(
    given: GivenJob,
    remote: Annotated[str, NAME],
    resume: Annotated[
        str | None,
        typer.Option("--resume", metavar="[RUN]", help="Go on with a run there, instead of a job."),
    ] = None,
    include: Annotated[
        list[str] | None,
        typer.Option(
            "--include", metavar="PATH", help="Push this too, although it would stay here."
        ),
    ] = None,
    wheelhouse: Annotated[
        Path | None,
        typer.Option(
            "--wheelhouse", metavar="DIR", help="Install from these wheels, without the internet."
        ),
    ] = None,
    requirements: Annotated[
        str | None,
        typer.Option("--requirements", metavar="FILE", help="Install these packages there too."),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option("--env", metavar="VARIABLE", help="Send this variable of yours along."),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Start it and come back at once.")
    ] = False,
    reconnect_s: Annotated[float, PATIENCE] = 600.0,
) -> int:
    """Push this folder, make the environment, start the job there and follow it.

    It goes on when the line drops or this command ends; Ctrl-C only stops following. NCCL_*,
    GLOO_*, TORCH_*, WANDB_* and HF_TOKEN of yours reach the ranks, through no file and no argv.

    Examples: phalanx remote train lab digits | phalanx remote train lab job.yaml --gpus 0,1
    --include data/raw --epochs 5
    """
    from phalanx.output.remote_view import follow, say_following
    from phalanx.places.remote.places import find_place
    from phalanx.places.remote.request import make_request, resume_request
    from phalanx.places.remote.runs import find_remote_run
    from phalanx.places.remote.sending import send_project, start_run
    from phalanx.places.remote.ssh import Connection
    from phalanx.places.remote.variables import variable_findings, variables_for, word_findings

    place = find_place(remote)
    with Connection(place) as connection:
        if resume is not None:
            request, found = resume_request(
                find_remote_run(connection, resume), given.overrides, place
            )
        else:
            request, _, found = make_request(given.job, given.overrides)
        findings = [
            *given.notes,
            *found,
            *word_findings((*request.words, request.output), os.environ),
            *variable_findings(os.environ, env or []),
        ]
        if errors_of(findings):
            raise UserError(findings)
        with console.working("connecting") as update:
            sent = send_project(
                connection,
                request,
                include=include or [],
                wheelhouse=wheelhouse,
                requirements=requirements,
                say=console.say,
                update=update,
            )
            variables = variables_for(os.environ, env or [])
            start_run(connection, sent, request, {**variables, "PYTHONUNBUFFERED": "1"})
        console.show_findings([*findings, *sent.findings])
        if variables:
            console.say(f"sent along: {', '.join(variables)}")
        console.say(f"started {request.name} on {place.name}")
        if detach:
            say_following(place.name, request.name)
            return 0
        return follow(connection, find_remote_run(connection, request.name), patience_s=reconnect_s)


@app.command("attach")
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


@app.command("runs")
def runs(name: Annotated[str, NAME]) -> int:
    """Show the runs that were started on a machine, the newest last.

    Examples: phalanx remote runs lab
    """
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


@app.command("pull")
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
    from phalanx.places.remote.pulling import pull_run

    with _connected(name) as connection, console.working("looking") as update:
        there = _find(connection, run)
        pulled, what = pull_run(connection, there, output, best_only=best, update=update)
    console.say(f"{what} came to {short_path(pulled.path)}")
    if there.ended is None:
        console.say("it is still running: the same command brings what is new")
    return 0


@app.command("stop")
def stop(
    name: Annotated[str, NAME],
    run: Annotated[str | None, RUN] = None,
    reconnect_s: Annotated[float, PATIENCE] = 600.0,
) -> int:
    """Tell a run to finish its step, save and end; waits until it has.

    Examples: phalanx remote stop lab | phalanx remote stop lab digits-20260131-120000
    """
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
