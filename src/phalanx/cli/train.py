"""`phalanx train`: plan a job, start its ranks, follow them to the end."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phalanx.cli.nodes import (
    MEETING_S,
    NodeRankOption,
    NodesOption,
    RendezvousOption,
    TimeoutOption,
)
from phalanx.cli.options.job import with_job_options

if TYPE_CHECKING:
    from pathlib import Path

    from phalanx.cli.follow import Result
    from phalanx.prepare.launcher import Launcher
    from phalanx.prepare.prepare import Prepared


@with_job_options
def train(
    job: str | None,
    overrides: list[Any],
    notes: list[Any],
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume",
            "--resume-from-checkpoint",
            metavar="[RUN|CHECKPOINT]",
            help="Continue a run (the newest if none is named), or from one checkpoint.",
        ),
    ] = None,
    accept_changes: Annotated[
        bool,
        typer.Option("--accept-changes", help="Resume although recipe, data or options changed."),
    ] = False,
    ladder: Annotated[
        bool,
        typer.Option(
            "--ladder",
            help="First a few steps on 1 rank, 2 ranks compared with 1, a few on all; then train.",
        ),
    ] = False,
    debug_comm: Annotated[
        bool,
        typer.Option("--debug-comm", help="NCCL and torch say what they do, into logs per rank."),
    ] = False,
    detach: Annotated[
        bool,
        typer.Option(
            "--detach", help="Check and plan, then go on without this terminal: `phalanx stop`."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check and plan, then stop; nothing is created.")
    ] = False,
    nodes: NodesOption = 1,
    node_rank: NodeRankOption = None,
    rendezvous: RendezvousOption = None,
    meeting_timeout: TimeoutOption = MEETING_S,
) -> int:
    """Train a job on every GPU there is, or on the devices you name.

    Examples: phalanx train digits | phalanx train job.yaml --gpus 0,1 --epochs 5 optimizer.lr=0.01
    """
    import os

    from phalanx.cli.detach import Leave, in_background
    from phalanx.cli.nodes import alone_only, train_on_nodes
    from phalanx.machine.environment import DEBUG_COMMUNICATION
    from phalanx.places.nodes.meeting import parse_rendezvous
    from phalanx.places.torchrun import Torchrun, TorchrunLauncher, follow_first_rank
    from phalanx.prepare.compile_cache import early_variables
    from phalanx.prepare.launcher import Launcher, LauncherError

    if ladder and resume is not None:
        raise _no_ladder(resume)
    if debug_comm:  # before torch is imported anywhere: it reads them then
        os.environ.update({**DEBUG_COMMUNICATION, **os.environ})

    asked = parse_rendezvous(nodes, node_rank, rendezvous, meeting_timeout)
    if asked is not None:
        for option, is_given in {"--detach": detach, "--ladder": ladder}.items():
            if is_given:
                raise alone_only(option, asked)
        return train_on_nodes(
            asked,
            job,
            overrides,
            notes,
            resume=resume,
            accept_changes=accept_changes,
            dry_run=dry_run,
        )
    joined = Torchrun.find() if not dry_run else None
    if joined is not None:
        options = {"--detach": detach, "--ladder": ladder}
        joined.refuse(*(name for name, is_given in options.items() if is_given))
        if joined.rank > 0:
            return follow_first_rank()
        from phalanx.prepare.resume_target import output_of

        resume = resume or joined.find_run(output_of(overrides))

    def run(leave: Leave) -> int:
        with Launcher() if joined is None else TorchrunLauncher(joined) as launcher:
            if joined is None and resume is None and not dry_run:  # else: other variables, perhaps
                with suppress(LauncherError):  # said when ranks are asked for
                    launcher.start(early_variables())
            # It imports torch meanwhile.
            from phalanx.cli.follow import run_prepared
            from phalanx.cli.plan import show_plan
            from phalanx.output import console
            from phalanx.prepare.prepare import prepare

            with console.working("looking at the machine and the recipe") as say:
                prepared = prepare(
                    job,
                    overrides,
                    resume=resume,
                    accept_changes=accept_changes,
                    adapt=joined.place if joined is not None else None,
                    launcher=None if dry_run else launcher,
                    is_fresh=joined is not None or ladder,
                    say=say,
                )
            if joined is not None:
                prepared = joined.judge(prepared)
            # That a plan is from memory matters to nobody who trains: ranks look at the data.
            found = [f for f in prepared.findings if dry_run or f.slug != "trace-remembered"]
            console.show_findings([*notes, *found])
            if dry_run:
                show_plan(prepared)
                return 0
            if ladder:
                _climb(job, overrides, prepared, launcher)
            result = run_prepared(prepared, launcher, on_open=leave)
        show_end(result, prepared)
        return int(result.exit_code)

    return in_background(run) if detach and not dry_run else run(lambda run: None)


def _climb(job: str | None, overrides: list[Any], prepared: Prepared, launcher: Launcher) -> None:
    from phalanx.output import console
    from phalanx.verbs.ladder import Rung, climb

    total = 3 if prepared.plan.ranks.value > 1 else 1
    rungs: list[Rung] = []

    def show(rung: Rung) -> None:
        rungs.append(rung)
        console.say(f"rung {len(rungs)} of {total}: {rung.describe()}")
        update(f"rung {len(rungs) + 1} of {total}" if len(rungs) < total else "starting")

    with console.working(f"rung 1 of {total}") as update:
        climb(job, overrides, prepared, launcher, on_rung=show, on_findings=console.show_findings)
    console.say("the ladder holds: the run begins")


def _no_ladder(resume: str) -> Exception:
    from phalanx.errors import Finding, UserError

    return UserError(
        Finding(
            slug="ladder-resume",
            what="--ladder is for a run that begins, --resume goes on with one",
            why=f"--ladder, --resume {resume}",
            fix=f"phalanx train --resume {resume}",
        )
    )


def show_end(result: Result, prepared: Prepared) -> None:
    """How a run ended, and what to type next."""
    from phalanx.errors import format_seconds
    from phalanx.output import console

    console.show_findings(result.findings)
    run = result.run
    if result.status == "failed":
        console.say(f"failed: {run}")
        console.say(f"  continue it: phalanx train --resume {run}")
        return
    figures = ", ".join(f"{name} {value:.4f}" for name, value in result.metrics.items())
    reason = "" if result.reason == result.status else f": {result.reason}"
    rows = [
        ("status", f"{result.status}{reason}"),
        ("test", figures or "not evaluated this time"),
        ("trained", f"{result.step or 0} steps in all, {format_seconds(result.seconds)} this time"),
        ("run", str(run)),
    ]
    if (run / "final_model").is_dir():
        rows.append(("model", str(run / "final_model")))
    if result.best is not None:
        rows.insert(2, ("best", result.best))
    console.table(rows)
    if result.status == "stopped":
        console.say(f"continue:  phalanx train --resume {run}")
        return
    console.say("next:")
    for command, meaning in _next_commands(run, prepared):
        console.say(f"  {command}")
        console.say(f"      {meaning}", style="dim")


def _next_commands(run: Path, prepared: Prepared) -> list[tuple[str, str]]:
    """What to type after a finished run."""
    from phalanx.recipe.loading import builtin_recipes

    job = prepared.job
    length = f"--epochs {2 * job.epochs}" if job.epochs else f"--steps {2 * (job.steps or 1)}"
    commands = [
        (f"phalanx watch {run}", "look at its curves and ranks; --web in a browser"),
        (f"phalanx train --resume {run} {length}", "train on, to twice the length"),
    ]
    commands.append((f"phalanx export {run}", "its best weights in one file for other tools"))
    if job.recipe in builtin_recipes():
        commands.append(
            (f"phalanx recipes copy {job.recipe} my_{job.recipe}", "a recipe of your own to edit")
        )
    return commands
