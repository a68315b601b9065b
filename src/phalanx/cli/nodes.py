"""The options for several nodes, and `phalanx train` on one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from phalanx.errors import Finding
    from phalanx.places.nodes.meeting_terms import Met, NodesAsked
    from phalanx.scripts.request import PreparedScript

NodesOption = Annotated[
    int, typer.Option("--nodes", help="Machines that train together; the command is given on each.")
]
NodeRankOption = Annotated[
    int | None,
    typer.Option(
        "--node-rank", help="Number of this machine; default: found when they meet, HOST is 0."
    ),
]
RendezvousOption = Annotated[
    str | None,
    typer.Option("--rendezvous", metavar="HOST:PORT", help="Where node 0 waits for the others."),
]
TimeoutOption = Annotated[
    float, typer.Option("--meeting-timeout", help="Seconds to wait for the other nodes.")
]
MEETING_S = 600.0


def tell(text: str) -> None:
    """A line about the nodes, as it happens."""
    from phalanx.output import console

    console.tell(text)


def alone_only(option: str, asked: NodesAsked) -> Exception:
    """An option that is for one node."""
    from phalanx.errors import Finding, UserError

    return UserError(
        Finding(
            slug="nodes-option",
            what=f"{option} is for one node, --nodes is {asked.nodes}",
            why="each node has a command of its own, which must be there until all have ended",
            fix="nohup, tmux or `phalanx slurm` on every node"
            if option == "--detach"
            else f"climb on one node first: {option} without --nodes",
        )
    )


def train_on_nodes(
    asked: NodesAsked,
    job: str | None,
    overrides: list[Any],
    notes: list[Any],
    *,
    resume: str | None,
    accept_changes: bool,
    dry_run: bool,
) -> int:
    """Meet the other nodes, then lead them or follow node 0."""
    from pathlib import Path

    from phalanx.places.nodes.join import job_facts, join_nodes
    from phalanx.prepare.prepare import read_job

    read = read_job(job, overrides, resume, nodes=asked.nodes)
    met = join_nodes(asked, Path(read.output), job_facts(read), tell)
    if met.rank > 0:
        return _follow(met, Path(read.output))
    return _lead(
        met,
        job,
        overrides,
        notes,
        resume=resume,
        accept_changes=accept_changes,
        dry_run=dry_run,
    )


def _lead(
    met: Met,
    job: str | None,
    overrides: list[Any],
    notes: list[Any],
    *,
    resume: str | None,
    accept_changes: bool,
    dry_run: bool,
) -> int:
    from phalanx.cli.follow import run_prepared
    from phalanx.cli.plan import show_plan
    from phalanx.cli.train import show_end
    from phalanx.output import console
    from phalanx.places.nodes.leader import Nodes
    from phalanx.prepare.launcher import Launcher
    from phalanx.prepare.prepare import prepare

    with Launcher() as launcher, Nodes(met) as nodes:
        with console.working("looking at the machines and the recipe"):
            prepared = prepare(
                job,
                overrides,
                resume=resume,
                accept_changes=accept_changes,
                launcher=None if dry_run else launcher,
                is_fresh=False,
                gather=nodes.gather,
                nodes=nodes.count,
            )
        nodes.check(prepared.plan)
        found = [f for f in prepared.findings if dry_run or f.slug != "trace-remembered"]
        console.show_findings([*notes, *nodes.findings, *found])
        if dry_run:
            show_plan(prepared)
            nodes.tell_end("planned", 0, "only a plan was asked for (--dry-run)", [])
            return 0
        result = run_prepared(prepared, launcher, nodes=nodes)
        code = int(result.exit_code)
        nodes.tell_end(result.status, code, result.reason, result.findings)
    show_end(result, prepared)
    return code


def _follow(met: Met, output: Any) -> int:
    from contextlib import suppress

    from phalanx.errors import ExitCode
    from phalanx.machine import cannot_train, probe_machine
    from phalanx.output import console
    from phalanx.places.nodes.follower import TrainFollower
    from phalanx.prepare.compile_cache import early_variables
    from phalanx.prepare.launcher import Launcher, LauncherError
    from phalanx.prepare.torch_facts import remembering_torch

    try:
        with Launcher() as launcher:
            with suppress(LauncherError):  # said when ranks are asked for
                launcher.start(early_variables())
            machine = probe_machine(output, ask=remembering_torch())
            unfit = cannot_train(machine)
            if unfit:
                code = int(ExitCode.MACHINE)
                records = [finding.to_json() for finding in unfit]
                met.links[0].send({"findings": records, "exit_code": code})
                console.show_findings(unfit)
                return code
            met.links[0].send({"machine": machine.to_json()})
            code, findings, words = TrainFollower(met, launcher, tell).run()
    finally:
        met.close()
    show_decided(findings, words)
    return code


def launch_on_nodes(asked: NodesAsked, prepared: PreparedScript, *, is_quiet: bool) -> int:
    """Meet the other nodes, then lead them or follow node 0 with a script of the user's own."""
    from pathlib import Path

    from phalanx.output.script_view import ScriptView, run_script
    from phalanx.places.nodes.join import join_nodes, script_facts
    from phalanx.places.nodes.leader import Nodes
    from phalanx.places.nodes.script_ranks import ScriptFollower, with_network

    met = join_nodes(asked, prepared.request.output, script_facts(prepared), tell)
    prepared = with_network(prepared, met.settings)
    if met.rank > 0:
        view = ScriptView(prepared, Path(), is_quiet=is_quiet)
        try:
            code, findings, words = ScriptFollower(
                met, prepared, on_line=view.line, tell=tell
            ).run()
        finally:
            met.close()
        show_decided(findings, words)
        return code
    with Nodes(met) as nodes:
        result = run_script(prepared, is_quiet=is_quiet, nodes=nodes)
        nodes.tell_end(result.status, result.exit_code, result.reason, result.findings)
    return result.exit_code


def show_decided(findings: list[Finding], words: str) -> None:
    """What node 0 has decided."""
    from phalanx.output import console

    console.show_findings(findings)
    if words:
        tell(words)
