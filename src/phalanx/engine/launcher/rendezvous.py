"""Where the ranks of all nodes meet."""

from __future__ import annotations

import socket
from typing import Any

from torch._C._distributed_c10d import TCPStore
from torch.distributed.elastic.rendezvous.api import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
)

from phalanx.machine.network import family_of
from phalanx.run.launching import Share


class FreshRendezvous(RendezvousHandler):
    """A rendezvous whose store is fresh for every attempt and listens on one address alone:
    loopback's on one node, else that of node 0. The other nodes have none: their ranks connect to
    it.

    torch's own c10d store listens on every interface and is reused after a restart with stale
    addresses in it (torch 2.13)."""

    def __init__(self, share: Share) -> None:
        self._share = share

    def get_backend(self) -> str:
        return "phalanx"

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        share = self._share
        store: Any = None
        port = share.port
        if share.node == 0:
            family = family_of(share.address)
            listener = socket.create_server((share.address, 0), family=family)
            port = listener.getsockname()[1]
            store = TCPStore(
                share.address,
                port,
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=listener.detach(),
            )
        where = RendezvousStoreInfo(share.address, port)
        return RendezvousInfo(store, share.node, share.nodes, where)

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        return

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._share.run.name

    def shutdown(self) -> bool:
        return True
