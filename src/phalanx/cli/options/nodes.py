"""The options for several nodes, which `train` and `launch` share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.errors import Finding, UserError
from phalanx.output import console

if TYPE_CHECKING:
    from phalanx.places.nodes.meeting_terms import NodesAsked

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


def alone_only(option: str, asked: NodesAsked) -> Exception:
    """An option that is for one node."""
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


def show_decided(findings: list[Finding], words: str) -> None:
    """Show what node 0 decided."""
    console.show_findings(findings)
    if words:
        console.tell(words)
