"""The ranks that are wanted on a node, and where the ranks of all nodes meet."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import TCPStore
from torch.distributed.elastic.rendezvous.api import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
)

from phalanx.machine.network import family_of

PLACE = ("node", "nodes", "address", "port")
"""Fields of a request that only several nodes need."""


@dataclass(frozen=True)
class RankRequest:
    """The ranks that are wanted on this node."""

    run: Path
    ranks: int
    attempt: int
    environment: dict[str, str]
    node: int = 0
    nodes: int = 1
    address: str = "127.0.0.1"
    """Of node 0, which holds the store."""
    port: int = 0
    """Of the store; 0 on node 0, which chooses it."""


class FreshRendezvous(RendezvousHandler):
    """A rendezvous whose store is fresh for every attempt and listens on one address alone:
    loopback's on one node, else that of node 0. The other nodes have none: their ranks connect to
    it.

    torch's own c10d store listens on every interface and is reused after a restart with stale
    addresses in it (torch 2.13)."""

    def __init__(self, request: RankRequest) -> None:
        self._request = request

    def get_backend(self) -> str:
        return "phalanx"

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        place = self._request
        store: Any = None
        port = place.port
        if place.node == 0:
            family = family_of(place.address)
            listener = socket.create_server((place.address, 0), family=family)
            port = listener.getsockname()[1]
            store = TCPStore(
                place.address,
                port,
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=listener.detach(),
            )
        where = RendezvousStoreInfo(place.address, port)
        return RendezvousInfo(store, place.node, place.nodes, where)

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        return

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._request.run.name

    def shutdown(self) -> bool:
        return True
