"""Nodes find each other, without torch: the one that has the address of the meeting listens there
and nowhere else, the others connect.

Who connects must read a secret that node 0 has written below the output folder, and each end shows
the other that it knows it. That proves two things at once: the folder is shared, and the peer is
the same user's. The secret itself never crosses the network.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phalanx.errors import Finding, UserError
from phalanx.launch import node_findings as say
from phalanx.launch.node_link import NodeLink
from phalanx.machine.network import (
    Interface,
    choose_interface,
    family_of,
    host_name,
    is_loopback,
    own_addresses,
    resolve,
)
from phalanx.run.channel import Channel

_GREETING_S = 10.0  # a peer that is one of ours answers at once; a shared folder may lag
_UNKNOWN_LIMIT = 1 << 20  # bytes of a record from who has not shown who it is
_RETRY_S = 0.5
_NO_ROUTE_S = 15.0  # a host that does not answer at all will not, however long one waits
_TELL_EVERY_S = 30.0
_PREFIX = ".meeting-"

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class NodesAsked:
    """What was asked: how many nodes meet where."""

    nodes: int
    node_rank: int | None
    host: str
    port: int
    timeout_s: float


@dataclass(frozen=True, kw_only=True)
class Hello:
    """What a node says of itself."""

    nodes: int
    node_rank: int | None
    host: str
    address: str
    interface: str
    gbps: float | None
    facts: dict[str, Any]
    """What must be the same on all nodes: versions, command, job, sources."""

    @property
    def title(self) -> str:
        number = "a node" if self.node_rank is None else f"node {self.node_rank}"
        return f"{number} ({self.host}, {self.address})"

    def to_json(self) -> dict[str, Any]:
        return dict(self.__dict__)


@dataclass
class Met:
    """The nodes are here: this one's number, and a line to each other one that is needed (node 0
    has one to every other, the others have one to node 0)."""

    rank: int
    members: list[Hello]
    interface: Interface
    links: dict[int, NodeLink]
    close: Callable[[], None] = field(default=lambda: None)


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
    except OSError as error:
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
    hello = Hello(
        nodes=asked.nodes,
        node_rank=0 if is_first else asked.node_rank,
        host=host_name(),
        address=interface.address,
        interface=interface.name,
        gbps=interface.gbps,
        facts=facts,
    )
    output.mkdir(parents=True, exist_ok=True)
    if is_first:
        return _Host(asked, address, hello, interface, output, tell).gather()
    return _Guest(asked, address, hello, interface, output, tell).join()


class _Host:
    """Node 0: listens, judges who comes, and answers who comes too late."""

    def __init__(
        self,
        asked: NodesAsked,
        address: str,
        hello: Hello,
        interface: Interface,
        output: Path,
        tell: Say,
    ) -> None:
        self._asked = asked
        self._address = address
        self._hello = hello
        self._interface = interface
        self._tell = tell
        self._output = output.resolve()
        self._secret = secrets.token_bytes(32)
        self._file = self._output / f"{_PREFIX}{secrets.token_hex(8)}.json"
        self._guests: list[tuple[Hello, NodeLink]] = []
        self._lock = threading.Lock()
        self._is_closed = False
        try:
            self._listener = socket.create_server(
                (address, asked.port), family=family_of(address), backlog=64
            )
        except OSError as error:
            raise UserError(say.cannot_listen(address, asked.port, error)) from error

    def gather(self) -> Met:
        self._write_secret()
        thread = threading.Thread(target=self._accept, name="meeting", daemon=True)
        thread.start()
        try:
            self._wait()
        except BaseException:
            self._close()
            raise
        return self._assign()

    def _write_secret(self) -> None:
        record = {"secret": self._secret.hex(), "address": self._address, "port": self._asked.port}
        descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(record, file)

    def _wait(self) -> None:
        began = told = time.monotonic()
        where = f"{self._address}:{self._asked.port}"
        wanted = self._asked.nodes
        shown = 0
        left = wanted - 1
        self._tell(
            f"node 0 of {wanted} ({self._hello.host}) waits at {where} for {left} more; there: "
            f"{say.command_of(1)}"
        )
        while True:
            with self._lock:
                self._drop_lost()
                here = list(self._guests)
            for guest, _ in here[shown:]:
                self._tell(f"{guest.title} is here: {len(here) + 1} of {wanted}")
            shown = len(here)
            if shown + 1 == wanted:
                return
            now = time.monotonic()
            names = [self._hello.title, *(guest.title for guest, _ in here)]
            if now - began > self._asked.timeout_s:
                seconds, free = self._asked.timeout_s, self._free_ranks()[0]
                raise UserError(say.missing(names, wanted, where, seconds, free))
            if now - told > _TELL_EVERY_S:
                told = now
                self._tell(f"{shown + 1} of {wanted} nodes are here: {', '.join(names)}; waiting")
            with suppress(OSError):
                os.utime(self._file)  # who looks at the wrong port sees that it lives
            time.sleep(0.1)

    def _drop_lost(self) -> None:
        for guest, link in list(self._guests):
            if link.lost is not None:
                self._guests.remove((guest, link))
                self._tell(f"{guest.title} has left again: {link.lost}")

    def _free_ranks(self) -> list[int]:
        taken = {0, *(guest.node_rank for guest, _ in self._guests)}
        return [rank for rank in range(self._asked.nodes) if rank not in taken]

    def _accept(self) -> None:
        while not self._is_closed:
            ready, _, _ = select.select([self._listener], [], [], 0.2)
            if not ready or self._is_closed:
                continue
            try:
                connection, _ = self._listener.accept()
            except OSError:
                continue
            threading.Thread(target=self._greet, args=(connection,), daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        """Find out who connects; a stranger is told nothing."""
        connection.settimeout(_GREETING_S)
        channel = Channel(connection, limit=_UNKNOWN_LIMIT)
        try:
            challenge = secrets.token_hex(16)
            channel.send(
                {
                    "phalanx": self._hello.facts["versions"]["phalanx"],
                    "file": self._file.name,
                    "folder": str(self._output),
                    "host": self._hello.host,
                    "challenge": challenge,
                }
            )
            answer = channel.receive(2 * _GREETING_S)
            if answer is None or not isinstance(answer.get("challenge"), str):
                raise EOFError
            theirs = answer["challenge"]
            proof = _prove(self._secret, "guest", challenge, theirs)
            if not hmac.compare_digest(proof, str(answer.get("proof"))):
                raise EOFError
            channel.limit = None
            guest = Hello(**answer["hello"])
            channel.send({"proof": _prove(self._secret, "host", theirs, challenge)})
        except (EOFError, OSError, ValueError, KeyError, TypeError, AttributeError):
            connection.close()
            return
        self._judge(guest, connection, channel)

    def _judge(self, guest: Hello, connection: socket.socket, channel: Channel) -> None:
        with self._lock:
            findings = self._against(guest)
            if not findings:
                link = NodeLink(connection, channel, guest.title)
                self._guests.append((guest, link))
                return
        with suppress(EOFError):
            channel.send({"refused": [finding.to_json() for finding in findings]})
        connection.close()
        for finding in findings:
            self._tell(f"{guest.title} was refused: {finding.what}")

    def _against(self, guest: Hello) -> list[Finding]:
        """What is wrong with a guest; it may mend that and come again."""
        nodes, mine = self._asked.nodes, self._hello
        if guest.nodes != nodes:
            return [say.differ("--nodes", guest.title, guest.nodes, mine.title, nodes)]
        found: list[Finding] = []
        ours, theirs = say.flatten(mine.facts), say.flatten(guest.facts)
        for key in dict.fromkeys([*ours, *theirs]):
            if ours.get(key) != theirs.get(key):
                found.append(
                    say.differ(key, guest.title, theirs.get(key), mine.title, ours.get(key))
                )
        if len(self._guests) + 1 >= nodes:
            return [*found, say.complete(guest.title, nodes)]
        others = [(mine.node_rank, mine), *((known.node_rank, known) for known, _ in self._guests)]
        for rank, other in others:
            if rank is not None and rank == guest.node_rank:
                free = self._free_ranks()
                found.append(say.rank_taken(rank, other.title, guest.title, nodes, free))
        return found

    def _assign(self) -> Met:
        """Numbers in the order of the addresses for who brought none: the same every time."""
        free = self._free_ranks()
        nameless = [pair for pair in self._guests if pair[0].node_rank is None]
        nameless.sort(key=lambda pair: (*map(int, _digits(pair[0].address)), pair[0].host))
        given = {id(link): rank for (_, link), rank in zip(nameless, free, strict=True)}
        members, links = {0: self._hello}, {}
        for guest, link in self._guests:
            rank = given.get(id(link), guest.node_rank)
            assert rank is not None
            members[rank] = Hello(**{**guest.to_json(), "node_rank": rank})
            links[rank] = link
            link.name = members[rank].title
        ordered = [members[rank] for rank in range(self._asked.nodes)]
        table = [{**member.to_json(), "facts": {}} for member in ordered]
        for rank, link in links.items():
            link.send({"welcome": rank, "members": table})
        return Met(0, ordered, self._interface, links, self._close)

    def _close(self) -> None:
        self._is_closed = True
        self._file.unlink(missing_ok=True)
        self._listener.close()
        for _, link in self._guests:
            link.close()


class _Guest:
    """Every other node: connects, as long as it takes."""

    def __init__(
        self,
        asked: NodesAsked,
        address: str,
        hello: Hello,
        interface: Interface,
        output: Path,
        tell: Say,
    ) -> None:
        self._asked = asked
        self._address = address
        self._hello = hello
        self._interface = interface
        self._output = output.resolve()
        self._tell = tell
        self._seen: dict[Path, int] = {}

    def join(self) -> Met:
        asked = self._asked
        connection = self._connect()
        connection.settimeout(_GREETING_S)
        channel = Channel(connection)
        try:
            self._prove_ourselves(channel)
        except (EOFError, OSError, ValueError, KeyError, TypeError) as error:
            connection.close()
            where = (self._hello.title, self._address, asked.port)
            raise UserError(say.not_ours(*where)) from error
        except UserError:
            connection.close()
            raise
        link = NodeLink(connection, channel, f"node 0 ({self._address})")
        self._tell(f"{self._hello.title} has met node 0 at {self._address}:{asked.port}")
        while True:
            record = link.receive(0.5)
            if record is not None and "refused" in record:
                link.close()
                raise UserError([Finding.from_json(one) for one in record["refused"]])
            if record is not None and "welcome" in record:
                members = [Hello(**one) for one in record["members"]]
                link.name = members[0].title
                rank = record["welcome"]
                return Met(rank, members, self._interface, {0: link}, link.close)
            if link.is_over:
                link.close()
                raise UserError(say.node_lost(link.name, str(link.lost)))

    def _connect(self) -> socket.socket:
        asked = self._asked
        began = told = time.monotonic()
        no_route_since: float | None = None
        while True:
            try:
                return socket.create_connection(
                    (self._address, asked.port), timeout=5, source_address=None
                )
            except OSError as error:
                now = time.monotonic()
                text = (
                    "timed out after 5 s"
                    if isinstance(error, TimeoutError)
                    else str(error.strerror or error)
                )
                is_refused = isinstance(error, ConnectionError)
                no_route_since = None if is_refused else no_route_since or began
            self._look_for_another_port()
            where = (self._hello.title, self._address, asked.port, text)
            if no_route_since is not None and now - no_route_since > _NO_ROUTE_S:
                raise UserError(say.unreachable(*where, now - no_route_since))
            if now - began > asked.timeout_s:
                raise UserError(say.nobody_there(*where, asked.timeout_s))
            if now - told > _TELL_EVERY_S or told == began:
                told = now
                self._tell(
                    f"{self._hello.title}: no node 0 at {self._address}:{asked.port} yet ({text}); "
                    "trying on"
                )
            time.sleep(_RETRY_S)

    def _look_for_another_port(self) -> None:
        """Node 0 may wait at another port: it keeps touching the file that says so."""
        for path in self._output.glob(f"{_PREFIX}*.json"):
            try:
                touched = path.stat().st_mtime_ns
                before = self._seen.setdefault(path, touched)
                record = json.loads(path.read_text(encoding="utf-8"))
                other = record["port"]
            except (OSError, ValueError, KeyError, TypeError):
                continue
            is_here = record.get("address") == self._address
            if touched != before and is_here and other != self._asked.port:
                where = (self._hello.title, self._address, self._asked.port)
                raise UserError(say.other_port(*where, other))

    def _prove_ourselves(self, channel: Channel) -> None:
        first = channel.receive(_GREETING_S)
        if first is None:
            raise EOFError
        mine = self._hello.facts["versions"]["phalanx"]
        if first["phalanx"] != mine:  # what follows may have changed between them
            theirs = f"node 0 ({first['host']})"
            key = "versions.phalanx"
            raise UserError(say.differ(key, self._hello.title, mine, theirs, first["phalanx"]))
        secret = self._read_secret(first)
        challenge = secrets.token_hex(16)
        channel.send(
            {
                "proof": _prove(secret, "guest", first["challenge"], challenge),
                "challenge": challenge,
                "hello": self._hello.to_json(),
            }
        )
        answer = channel.receive(_GREETING_S) or {}
        expected = _prove(secret, "host", challenge, first["challenge"])
        if not hmac.compare_digest(expected, str(answer.get("proof"))):
            raise EOFError

    def _read_secret(self, first: dict[str, Any]) -> bytes:
        path = self._output / Path(first["file"]).name
        deadline = time.monotonic() + _GREETING_S / 2
        while True:
            try:
                return bytes.fromhex(json.loads(path.read_text(encoding="utf-8"))["secret"])
            except FileNotFoundError as error:
                if time.monotonic() > deadline:
                    self._refuse_folder(first, error)
                time.sleep(0.2)
            except OSError as error:
                self._refuse_folder(first, error)

    def _refuse_folder(self, first: dict[str, Any], error: OSError) -> None:
        there, folder = f"node 0 ({first['host']})", str(first["folder"])
        told = error.strerror or str(error)
        raise UserError(
            say.not_shared(self._hello.title, there, self._output, folder, told)
        ) from error


def _prove(secret: bytes, role: str, theirs: str, mine: str) -> str:
    """What only who knows the secret can answer to a challenge; each role answers its own way, so
    that no answer can be sent back."""
    return hmac.new(secret, f"{role} {theirs} {mine}".encode(), hashlib.sha256).hexdigest()


def _digits(address: str) -> list[str]:
    """An address as numbers, in order."""
    import ipaddress

    return [str(int(ipaddress.ip_address(address)))]
