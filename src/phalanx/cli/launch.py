"""`phalanx launch`: run an unmodified training script on several ranks, follow it to the end."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli.options import script as options
from phalanx.cli.options.nodes import (
    MEETING_S,
    NodeRankOption,
    NodesOption,
    RendezvousOption,
    TimeoutOption,
)
from phalanx.output import console

if TYPE_CHECKING:
    from phalanx.cli.detach import Leave
    from phalanx.places.nodes.leader import Nodes
    from phalanx.places.nodes.meeting_terms import NodesAsked
    from phalanx.scripts.request import PreparedScript


def launch(
    script: options.Script,
    module: options.Module = False,
    gpus: Annotated[
        str | None, typer.Option("--gpus", help="`all`, a number, or ids: `0,2,3`.")
    ] = None,
    cpu: options.Cpu = None,
    python: options.Python = None,
    max_restarts: Annotated[int, options.MAX_RESTARTS] = 3,
    resume_with: options.ResumeWith = None,
    resumed: Annotated[
        bool,
        typer.Option("--resumed", help="Add them to the first attempt too: the script goes on."),
    ] = False,
    mixed_precision: options.MixedPrecision = None,
    gradient_accumulation: options.Accumulation = None,
    accelerate_config: options.AccelerateConfig = None,
    deepspeed: options.Deepspeed = None,
    results: Annotated[
        str | None,
        typer.Option(
            "--results",
            metavar="PATTERN",
            help="Files of results to read as they grow. Default: `runs/*/*/results.csv`, where "
            "Ultralytics writes.",
        ),
    ] = None,
    tensorboard: Annotated[
        bool,
        typer.Option(
            "--tensorboard/--no-tensorboard", help="Write TensorBoard files once a loss is seen."
        ),
    ] = True,
    output: options.Output = "runs",
    name: options.Name = None,
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet", help="Show rank 0's output only, without `[rank 0]`; logs keep all."
        ),
    ] = False,
    debug_comm: Annotated[
        bool,
        typer.Option("--debug-comm", help="NCCL and torch say what they do, into logs per rank."),
    ] = False,
    detach: Annotated[
        bool,
        typer.Option("--detach", help="Check, then go on without this terminal: `phalanx stop`."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check, show what would be run, then stop.")
    ] = False,
    nodes: NodesOption = 1,
    node_rank: NodeRankOption = None,
    rendezvous: RendezvousOption = None,
    meeting_timeout: TimeoutOption = MEETING_S,
) -> int:
    """Run an unmodified training script on every GPU, or on the devices you name.

    It finds all that torchrun and `accelerate launch` set. Options of launch come before it.

    Examples: phalanx launch --gpus 4 train.py --epochs 3 | phalanx launch --cpu 2 -m my.train
    """
    from phalanx.cli.detach import in_background
    from phalanx.cli.options.job import parse_gpus
    from phalanx.cli.options.nodes import alone_only
    from phalanx.places.nodes.meeting import parse_rendezvous
    from phalanx.places.torchrun import refuse_inside_torchrun
    from phalanx.scripts.request import RESULTS, ScriptRequest, prepare_script

    refuse_inside_torchrun()
    asked = parse_rendezvous(nodes, node_rank, rendezvous, meeting_timeout)
    if asked is not None and detach:
        raise alone_only("--detach", asked)
    request = ScriptRequest(
        nodes=nodes,
        is_resumed=resumed,
        script=script[0],
        arguments=script[1:],
        is_module=module,
        gpus=parse_gpus(gpus) if gpus is not None else None,
        cpu=cpu,
        name=name,
        output=Path(output),
        python=python,
        max_restarts=max_restarts,
        resume_with=resume_with,
        mixed_precision=mixed_precision,
        gradient_accumulation=gradient_accumulation,
        accelerate_config=Path(accelerate_config) if accelerate_config else None,
        deepspeed=Path(deepspeed) if deepspeed else None,
        results=results or RESULTS,
        debug_comm=debug_comm,
        tensorboard=tensorboard,
    )

    def run(leave: Leave) -> int:
        prepared = prepare_script(request)
        console.show_findings(prepared.findings)
        if dry_run:
            _show_plan(prepared)
            return 0
        if asked is not None:
            return _launch_on_nodes(asked, prepared, is_quiet=quiet)
        return _launch(prepared, is_quiet=quiet, leave=leave)

    return in_background(run) if detach and not dry_run else run(lambda run: None)


def _launch(
    prepared: PreparedScript,
    *,
    is_quiet: bool,
    leave: Leave = lambda run: None,
    nodes: Nodes | None = None,
) -> int:
    from phalanx.output.script_view import ScriptView, show_end
    from phalanx.verbs.launch import launch

    show = partial(ScriptView, is_quiet=is_quiet)
    result = launch(prepared, show=show, on_open=leave, nodes=nodes)
    show_end(result)
    return result.exit_code


def _launch_on_nodes(asked: NodesAsked, prepared: PreparedScript, *, is_quiet: bool) -> int:
    """Meet the other nodes, then lead them or follow node 0."""
    from phalanx.cli.options.nodes import show_decided
    from phalanx.output.script_view import ScriptView
    from phalanx.places.nodes.follower import NodeFollower
    from phalanx.places.nodes.join import join_nodes, script_facts, with_network
    from phalanx.places.nodes.leader import Nodes
    from phalanx.places.nodes.starters import ScriptStarter

    met = join_nodes(asked, prepared.request.output, script_facts(prepared), console.tell)
    prepared = with_network(prepared, met.settings)
    if met.rank == 0:
        with Nodes(met) as nodes:
            return _launch(prepared, is_quiet=is_quiet, nodes=nodes)
    view = ScriptView(prepared, Path(), is_quiet=is_quiet)
    try:
        starter = ScriptStarter(prepared, view.line)
        code, findings, words = NodeFollower(met, starter, console.tell).run()
    finally:
        met.close()
    show_decided(findings, words)
    return code


def _show_plan(prepared: PreparedScript) -> None:
    from phalanx.scripts.request import hide_secrets

    rows = [("command", shlex.join(hide_secrets(prepared.argv)))]
    if prepared.resume_words:
        rows.append(("resumes with", shlex.join(hide_secrets(prepared.resume_words))))
    rows.append(("ranks", f"{prepared.world} over {prepared.backend}, as a rule"))
    rows += [(f"rank {rank}", device) for rank, device in enumerate(prepared.devices)]
    rows += [("sets", f"{name}={value}") for name, value in sorted(prepared.variables.items())]
    console.table(rows)
