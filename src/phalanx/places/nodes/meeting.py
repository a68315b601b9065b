"""Nodes find each other, without torch: the one that has the address of the meeting listens there
and nowhere else, the others connect.

Who connects must read a secret that node 0 has written below the output folder, and each end shows
the other that it knows it. That proves two things at once: the folder is shared, and the peer is
the same user's. The secret itself never crosses the network.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from phalanx.errors import UserError
from phalanx.machine.gpus import may_have_cuda
from phalanx.machine.network import (
    choose_interface,
    host_name,
    is_loopback,
    network_settings,
    own_addresses,
    resolve,
)
from phalanx.places.nodes import findings as say
from phalanx.places.nodes.meeting_guest import MeetingGuest
from phalanx.places.nodes.meeting_host import MeetingHost
from phalanx.places.nodes.meeting_terms import Hello, Met, NodesAsked, Say, Terms


def parse_rendezvous(
    nodes: int, node_rank: int | None, rendezvous: str | None, timeout_s: float
) -> NodesAsked | None:
    """The options of a command; None for one node. All problems at once."""
    host, _, number = (rendezvous or "").rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    is_port = number.isdecimal() and 0 < int(number) < 65536 and host
    port = int(number) if is_port else None
    findings = [*say.wrong_request(nodes, node_rank, rendezvous, port)]
    if findings:
        raise UserError(findings)
    if nodes == 1 or port is None:
        return None
    return NodesAsked(nodes=nodes, node_rank=node_rank, host=host, port=port, timeout_s=timeout_s)


def meet(asked: NodesAsked, output: Path, facts: dict[str, Any], tell: Say) -> Met:
    """Wait until all nodes are here. Raises UserError with what is wrong."""
    try:
        addresses = resolve(asked.host, asked.port)
    except (OSError, ValueError) as error:  # ValueError: a name that cannot be one
        raise UserError(say.unknown_host(asked.host, error)) from error
    outside = [address for address in addresses if not is_loopback(address)]
    if not outside:
        raise UserError(say.loopback(asked.host, addresses[0], asked.nodes))
    own = own_addresses()
    mine = next((address for address in outside if address in own), None)
    is_first = asked.node_rank == 0 or (asked.node_rank is None and mine is not None)
    address = mine or outside[0]
    if is_first and mine is None:
        raise UserError(say.not_here(asked.host, address))
    try:
        interface = choose_interface(address, os.environ)
    except OSError as error:
        here = f"{host_name()} ({', '.join(a for a in own if not is_loopback(a)) or 'no network'})"
        told = error.strerror or str(error)
        raise UserError(say.unreachable(here, address, asked.port, told, 0)) from error
    settings = network_settings(interface, has_cuda=may_have_cuda())
    hello = Hello(
        nodes=asked.nodes,
        node_rank=0 if is_first else asked.node_rank,
        host=host_name(),
        address=interface.address,
        interface=interface.name,
        gbps=interface.gbps,
        settings=[str(setting) for setting in settings],
        facts=facts,
    )
    output.mkdir(parents=True, exist_ok=True)
    terms = Terms(
        asked=asked,
        address=address,
        hello=hello,
        settings=settings,
        output=output,
        tell=tell,
    )
    return MeetingHost(terms).gather() if is_first else MeetingGuest(terms).join()
