"""Whether every node reaches every other one, before any rank waits for a rank: all pairs at once,
on the interfaces that ranks will use, at a port that the system chooses, as ranks do."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from phalanx.errors import Finding, UserError
from phalanx.machine.network import family_of
from phalanx.places.nodes import findings as say
from phalanx.places.nodes.link import NodeLink
from phalanx.places.nodes.meeting_terms import Met
from phalanx.places.nodes.messages import CannotJoin
from phalanx.run.channel import Message

_TRY_S = 5.0
_ANSWER_S = 30.0

M = TypeVar("M", bound=Message)


def check_pairs(met: Met) -> None:
    """Have every node try every other. Node 0 raises UserError with each pair that fails, and the
    others raise what it says."""
    with _OpenDoor(met) as door:
        if met.rank == 0:
            _lead(met, door.port)
        else:
            _take_part(met, door.port)


@dataclass(frozen=True)
class Door(Message):
    """Where a node can be tried."""

    port: int


@dataclass(frozen=True)
class TryDoors(Message):
    """Try the other nodes: number, address and port of each."""

    doors: list[tuple[int, str, int]]


@dataclass(frozen=True)
class Tried(Message):
    """The nodes that cannot be reached from one, and why."""

    failed: list[tuple[int, str]]


@dataclass(frozen=True)
class PairsTried(Message):
    """All pairs that fail."""

    findings: list[Finding]


class _OpenDoor:
    """Listens on the address that the others will try, and says which node this is."""

    def __init__(self, met: Met) -> None:
        me = met.members[met.rank]
        self._greeting = f"phalanx node {met.rank}\n".encode()
        family = family_of(me.address)
        self._listener = socket.create_server((me.address, 0), family=family, backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self._is_closed = False
        self._thread = threading.Thread(target=self._answer, daemon=True)

    def __enter__(self) -> _OpenDoor:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed = True
        self._thread.join()
        self._listener.close()

    def _answer(self) -> None:
        while not self._is_closed:
            ready, _, _ = select.select([self._listener], [], [], 0.1)
            if ready:
                try:
                    connection, _ = self._listener.accept()
                    with connection:
                        connection.settimeout(_TRY_S)
                        connection.sendall(self._greeting)
                except OSError:
                    continue


def _lead(met: Met, port: int) -> None:
    ports = {0: port}
    for rank, link in met.links.items():
        ports[rank] = wait_for(link, Door).port
    doors = [(rank, member.address, ports[rank]) for rank, member in enumerate(met.members)]
    for link in met.links.values():
        link.send(TryDoors(doors))
    failed = [(0, rank, error) for rank, error in _try_all(0, doors)]
    for node, link in met.links.items():
        failed += [(node, rank, error) for rank, error in wait_for(link, Tried).failed]
    titles = [member.title for member in met.members]
    findings = [say.no_pair(titles[here], titles[there], error) for here, there, error in failed]
    for link in met.links.values():
        link.send(PairsTried(findings))
    if findings:
        raise UserError(findings)


def _take_part(met: Met, port: int) -> None:
    link = met.links[0]
    link.send(Door(port))
    doors = wait_for(link, TryDoors).doors
    link.send(Tried(_try_all(met.rank, doors)))
    findings = wait_for(link, PairsTried).findings
    if findings:
        raise UserError(findings)


def _try_all(mine: int, doors: Sequence[tuple[int, str, int]]) -> list[tuple[int, str]]:
    """The nodes that cannot be reached from here, and why."""
    others = [door for door in doors if door[0] != mine]
    with ThreadPoolExecutor(min(32, len(others))) as pool:
        errors = pool.map(lambda door: _try(*door), others)
        return [(door[0], error) for door, error in zip(others, errors, strict=True) if error]


def _try(rank: int, address: str, port: int) -> str | None:
    where = f"{address}:{port}"
    try:
        with socket.create_connection((address, port), timeout=_TRY_S) as connection:
            if connection.recv(64) == f"phalanx node {rank}\n".encode():
                return None
            return f"another program answers at {where}"
    except TimeoutError:
        return f"{where} timed out after {_TRY_S:.0f} s"
    except OSError as error:
        return f"{where}: {error.strerror or error}"


def wait_for(link: NodeLink, kind: type[M], timeout_s: float | None = _ANSWER_S) -> M:
    """Return the next message of this kind. UserError when the node is lost, cannot take part, or
    takes too long (None: however long it takes)."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    others: list[Message] = []
    while True:
        message = link.receive(0.1)
        if isinstance(message, kind):
            link.put_back(others)
            return message
        if message is not None:
            others.append(message)
        if isinstance(message, CannotJoin):
            raise UserError(message.findings, exit_code=message.exit_code)
        if link.is_over:
            raise UserError(say.node_lost(link.name, str(link.lost)))
        if deadline is not None and time.monotonic() > deadline:
            raise UserError(say.node_lost(link.name, f"no answer within {timeout_s:.0f} s"))
