"""`phalanx train`: plan a job, start its ranks, follow them to the end."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phalanx.cli.options.job import GivenJob, with_job_options
from phalanx.cli.options.nodes import (
    MEETING_S,
    NodeRankOption,
    NodesOption,
    RendezvousOption,
    TimeoutOption,
)
from phalanx.errors import Finding, UserError
from phalanx.output import console

if TYPE_CHECKING:
    from phalanx.cli.detach import Leave
    from phalanx.output.progress import RunView
    from phalanx.planner.schema.plan import Plan
    from phalanx.prepare.launcher import Launcher
    from phalanx.prepare.plan import Prepared
    from phalanx.verbs.train import RunFigures


@with_job_options
def train(
    given: GivenJob,
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
    from phalanx.cli.detach import in_background
    from phalanx.cli.options.nodes import alone_only, show_decided
    from phalanx.machine.environment import DEBUG_COMMUNICATION
    from phalanx.places.nodes.meeting import parse_rendezvous
    from phalanx.places.torchrun import Torchrun, follow_first_rank

    if ladder and resume is not None:
        raise _no_ladder(resume)
    if debug_comm:  # before torch is imported anywhere: it reads them then
        os.environ.update({**DEBUG_COMMUNICATION, **os.environ})

    one_node = {"--detach": detach, "--ladder": ladder}
    alone = [option for option, is_given in one_node.items() if is_given]
    asked = parse_rendezvous(nodes, node_rank, rendezvous, meeting_timeout)
    if asked is not None and alone:
        raise alone_only(alone[0], asked)
    torchrun = Torchrun.find() if not dry_run and asked is None else None
    if torchrun is not None:
        torchrun.refuse(*alone)
        if torchrun.rank > 0:
            return follow_first_rank()
        from phalanx.prepare.resume_target import output_of

        resume = resume or torchrun.find_run(output_of(given.overrides))
    do = partial(
        _train,
        given,
        resume=resume,
        accept_changes=accept_changes,
        is_dry_run=dry_run,
        has_ladder=ladder,
        torchrun=torchrun,
    )
    if asked is None:
        return in_background(do) if detach and not dry_run else do()
    from phalanx.places.nodes.join import job_facts, join_nodes
    from phalanx.places.nodes.leader import Nodes
    from phalanx.prepare.job import read_job

    read = read_job(given.job, given.overrides, resume, nodes=asked.nodes).job
    met = join_nodes(asked, Path(read.output), job_facts(read), console.tell)
    if met.rank > 0:
        from phalanx.verbs.train import follow_node

        code, findings, words = follow_node(met, Path(read.output), console.tell)
        show_decided(findings, words)
        return code
    with Nodes(met) as others:
        return do(nodes=others)


def _train(
    given: GivenJob,
    leave: Leave = lambda run: None,
    *,
    has_ladder: bool,
    is_dry_run: bool,
    **how: Any,
) -> int:
    """Train a job and show it, or show its plan alone."""
    from phalanx.verbs.train import Hooks, train

    prepared_job: Prepared | None = None

    def show_prepared(prepared: Prepared, launcher: Launcher) -> None:
        from phalanx.output.plan import show_plan

        nonlocal prepared_job
        prepared_job = prepared
        # That a plan is cached matters to nobody who trains: ranks look at the data.
        found = [f for f in prepared.findings if is_dry_run or f.slug != "trace-remembered"]
        console.show_findings([*given.notes, *found])
        if is_dry_run:
            show_plan(prepared)
        elif has_ladder:
            _climb(given, prepared, launcher)

    hooks = Hooks(
        working=console.working,
        on_prepared=show_prepared,
        on_finding=lambda finding: console.show_findings([finding]),
        on_open=leave,
        say=console.say,
        show=_show_run,
    )
    result = train(
        given.job,
        given.overrides,
        is_fresh=has_ladder,
        is_dry_run=is_dry_run,
        hooks=hooks,
        **how,
    )
    if not is_dry_run:
        from phalanx.output.train import show_end

        assert prepared_job is not None, "it was trained"
        show_end(result, prepared_job)
    return int(result.exit_code)


def _show_run(plan: Plan, logs: Path, figures: RunFigures) -> RunView:
    # Imported when needed: the launcher imports torch meanwhile.
    from phalanx.output.progress import RunView

    return RunView(plan, logs, figures)


def _climb(given: GivenJob, prepared: Prepared, launcher: Launcher) -> None:
    from phalanx.verbs.ladder import Rung, climb

    total = 3 if prepared.plan.devices.ranks.value > 1 else 1
    rungs: list[Rung] = []

    def show(rung: Rung) -> None:
        rungs.append(rung)
        console.say(f"rung {len(rungs)} of {total}: {rung.describe()}")
        update(f"rung {len(rungs) + 1} of {total}" if len(rungs) < total else "starting")

    with console.working(f"rung 1 of {total}") as update:
        climb(
            given.job,
            given.overrides,
            prepared,
            launcher,
            on_rung=show,
            on_findings=console.show_findings,
        )
    console.say("the ladder holds: the run begins")


def _no_ladder(resume: str) -> Exception:
    return UserError(
        Finding(
            slug="ladder-resume",
            what="--ladder is for a run that begins, --resume goes on with one",
            why=f"--ladder, --resume {resume}",
            fix=f"phalanx train --resume {resume}",
        )
    )
