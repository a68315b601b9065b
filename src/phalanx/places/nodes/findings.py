"""What can be wrong when nodes meet, in words: each Finding names both nodes and both values."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from phalanx.errors import Finding
from phalanx.machine.network import is_loopback, own_addresses
from phalanx.scripts.request import hide_secrets


def wrong_request(
    nodes: int, node_rank: int | None, rendezvous: str | None, port: int | None
) -> Iterator[Finding]:
    """Problems of the options by themselves."""
    if nodes < 1:
        yield Finding(
            slug="nodes-asked",
            what=f"--nodes {nodes}, the least is 1",
            why="read from the command line",
            fix="--nodes 2",
        )
    if node_rank is not None and not 0 <= node_rank < max(1, nodes):
        yield Finding(
            slug="nodes-asked",
            what=f"--node-rank {node_rank} is not between 0 and {nodes - 1}",
            why=f"--nodes {nodes}: the nodes are counted from 0",
            fix=f"--node-rank {max(0, nodes - 1)}, or leave it out",
        )
    if nodes > 1 and rendezvous is None:
        mine = _reachable_address()
        yield Finding(
            slug="nodes-asked",
            what=f"--nodes {nodes} without --rendezvous: the nodes do not know where to meet",
            why="one of them listens at an address that the others can reach",
            fix=f"--rendezvous {mine}:29500 on every node",
        )
    if nodes == 1 and (rendezvous is not None or node_rank):
        yield Finding(
            slug="nodes-asked",
            what="--rendezvous and --node-rank are for several nodes, there is 1",
            why="--nodes was not given, or is 1",
            fix="--nodes 2",
        )
    if rendezvous is not None and port is None:
        yield Finding(
            slug="nodes-asked",
            what=f"--rendezvous {rendezvous!r} is not HOST:PORT",
            why="PORT is a number from 1 to 65535; an IPv6 address stands in brackets",
            fix=f"--rendezvous {_reachable_address()}:29500",
        )


def _reachable_address() -> str:
    mine = [address for address in own_addresses() if not is_loopback(address)]
    return next((address for address in mine if ":" not in address), mine[0] if mine else "HOST")


def unknown_host(host: str, error: OSError | ValueError) -> Finding:
    return Finding(
        slug="rendezvous-unknown",
        what=f"no address for the host {host!r}",
        why=f"it stands in --rendezvous; {getattr(error, 'strerror', None) or error}",
        fix="the address itself: on that node `hostname -I` shows it",
    )


def loopback(host: str, address: str, nodes: int) -> Finding:
    other = _reachable_address()
    return Finding(
        slug="rendezvous-loopback",
        what=f"`{host}` is {address} here: no other node can reach that",
        why=f"--nodes {nodes}; a line of /etc/hosts, as a rule, gives the name of a machine to its "
        "loopback; each node would wait for itself",
        fix=f"an address that all nodes have for it: --rendezvous {other}:29500",
    )


def not_here(host: str, address: str) -> Finding:
    mine = ", ".join(a for a in own_addresses() if not is_loopback(a)) or "none"
    return Finding(
        slug="rendezvous-elsewhere",
        what=f"node 0 listens at `{host}` ({address}), which is no address of this node",
        why=f"--node-rank 0 was given here; this node has {mine}",
        fix=f"--rendezvous {_reachable_address()}:29500 on every node, or another --node-rank here",
    )


def cannot_listen(address: str, port: int, error: OSError) -> Finding:
    return Finding(
        slug="rendezvous-port",
        what=f"node 0 cannot listen at {address}:{port}: {error.strerror or error}",
        why="another program has this port, or an earlier run of yours has not ended",
        fix=f"another port on every node: --rendezvous {address}:{port % 65535 + 1}",
    )


def unreachable(here: str, address: str, port: int, error: str, seconds: float) -> Finding:
    return Finding(
        slug="node-unreachable",
        what=f"{here} cannot reach node 0 ({address}:{port}): {error}",
        why=f"tried for {seconds:.0f} s; no route, a firewall, or the wrong address",
        fix=f"ping {address}; --rendezvous with an address that both nodes can use",
    )


def no_pair(here: str, there: str, error: str) -> Finding:
    return Finding(
        slug="node-unreachable",
        what=f"{here} cannot reach {there}: {error}",
        why="all nodes try each other on the interfaces that the ranks will use; ranks connect to "
        "ports that the system chooses",
        fix="GLOO_SOCKET_IFNAME=NAME NCCL_SOCKET_IFNAME=NAME for another interface on that node; "
        "or let all ports through between the nodes",
    )


def nobody_there(here: str, address: str, port: int, error: str, seconds: float) -> Finding:
    return Finding(
        slug="nodes-missing",
        what=f"{here} has found no node 0 at {address}:{port} within {seconds:.0f} s: {error}",
        why=f"the host answers, and nothing of ours listens at port {port}; --meeting-timeout is "
        f"{seconds:g}",
        fix=f"on the node with {address}: {command_of(0)}",
    )


def other_port(here: str, address: str, port: int, other: int) -> Finding:
    return Finding(
        slug="rendezvous-differs",
        what=f"{here} looks for node 0 at port {port}, and it waits at port {other}",
        why=f"--rendezvous {address}:{port} here; a file in the output folder that node 0 keeps "
        f"writing says {address}:{other}",
        fix=f"--rendezvous {address}:{other} here",
    )


def missing(came: Sequence[str], wanted: int, where: str, seconds: float, free: int) -> Finding:
    return Finding(
        slug="nodes-missing",
        what=f"{len(came)} of {wanted} nodes are here after {seconds:.0f} s: {', '.join(came)}",
        why=f"--nodes {wanted}; node 0 waited at {where}; --meeting-timeout is {seconds:g}",
        fix=f"on the missing node: {command_of(free)}",
    )


def not_shared(here: str, there: str, mine: Path, theirs: str, error: str) -> Finding:
    return Finding(
        slug="output-not-shared",
        what=f"`{mine}` on {here} is not `{theirs}` on {there}",
        why=f"node 0 has written a file there, and here: {error}; all nodes write into one run "
        "directory, which only the same user may do",
        fix="--output with a folder of a file system that all nodes share (NFS, Lustre)",
    )


def not_ours(here: str, address: str, port: int) -> Finding:
    return Finding(
        slug="rendezvous-stranger",
        what=f"what answers {here} at {address}:{port} is no node of this run",
        why="it did not show that it knows what is written in the output folder",
        fix="another port on every node",
    )


def differ(key: str, here: str, mine: Any, there: str, theirs: Any) -> Finding:
    return Finding(
        slug="nodes-differ",
        what=f"{key} is {_short(theirs)} on {there} and {_short(mine)} on {here}",
        why="all nodes must do the same: both were read where the commands were given",
        fix="the same command, job file, code and environment on every node",
    )


def rank_taken(rank: int, first: str, second: str, nodes: int, free: Sequence[int]) -> Finding:
    rest = f"--node-rank {free[0]} on one of them" if free else "--node-rank left out"
    return Finding(
        slug="node-rank-taken",
        what=f"two nodes are node {rank}: {first} and {second}",
        why=f"--node-rank {rank} was given on both; --nodes {nodes}, free: "
        f"{', '.join(map(str, free)) or 'none'}",
        fix=rest,
    )


def complete(here: str, nodes: int) -> Finding:
    return Finding(
        slug="nodes-complete",
        what=f"{here} is one too many: {nodes} of {nodes} nodes are there already",
        why=f"--nodes {nodes} was given on the node that listens",
        fix=f"--nodes {nodes + 1} on every node, or leave this one out",
    )


def node_lost(node: str, why: str) -> Finding:
    return Finding(
        slug="node-lost",
        what=f"{node} is lost: {why}",
        why="the machine or its command is gone, or the network between is; every node has ended "
        "its ranks; the last checkpoint stands",
        fix="start all nodes again with --resume",
    )


def waiting_for_node(node: str, why: str, seconds: float, min_nodes: int | None) -> Finding:
    then = (
        "the run ends" if min_nodes is None else f"others go on, if at least {min_nodes} are left"
    )
    return Finding(
        slug="node-lost",
        what=f"{node} is lost: {why}; it is waited for",
        why=f"devices.node_wait_s = {seconds:g}; every node has ended its ranks; if it does not "
        f"come back, {then} (devices.min_nodes)",
        fix="look at that machine and its network; once it is reachable all ranks start again",
        severity="warning",
    )


def slow_network(node: str, interface: str, gbps: float) -> Finding:
    return Finding(
        slug="network-slow",
        what=f"the interface `{interface}` of {node} has {gbps:g} Gb/s",
        why="as its driver says; all gradients cross it in every step, while the GPUs wait; one "
        "node may be faster than several",
        fix="GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME of a faster one; or more "
        "gradient_accumulation: it exchanges once per step",
        severity="warning",
    )


def uneven(ranks: int, nodes: int, reason: str) -> Finding:
    return Finding(
        slug="nodes-ranks",
        what=f"{ranks} rank{'s' * (ranks != 1)} cannot be shared by {nodes} nodes",
        why=f"--nodes {nodes}; ranks = {ranks}: {reason}",
        fix="leave --nodes out, or ask for devices on every node: --gpus all, --cpu N",
    )


def command_of(rank: int) -> str:
    """The command line at hand, for another node."""
    words = iter(hide_secrets(sys.argv[1:]))
    kept = []
    for word in words:
        if word == "--node-rank":
            next(words, None)
        elif not word.startswith("--node-rank="):
            kept.append(word)
    where = kept.index("--rendezvous") if "--rendezvous" in kept else len(kept)
    return shlex.join(["phalanx", *kept[:where], "--node-rank", str(rank), *kept[where:]])


def flatten(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"a": {"b": 1}}` -> `{"a.b": 1}`."""
    found: dict[str, Any] = {}
    for key, value in record.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            found |= flatten(value, f"{name}.")
        else:
            found[name] = value
    return found


def _short(value: Any) -> str:
    text = "not given" if value is None else str(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
