"""Node 0 of a meeting: listens at its own address and nowhere else, and judges who comes."""

from __future__ import annotations

import json
import os
import secrets
import select
import socket
import threading
import time
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_address

from phalanx.codec import to_json
from phalanx.errors import Finding, UserError
from phalanx.machine.network import family_of
from phalanx.places.nodes import findings as say
from phalanx.places.nodes.link import NodeLink
from phalanx.places.nodes.meeting_terms import (
    GREETING_S,
    PREFIX,
    TELL_EVERY_S,
    Greeting,
    Hello,
    Introduction,
    Met,
    Proof,
    Refused,
    SecretFile,
    Terms,
    Welcome,
    is_same,
    prove,
)
from phalanx.run.channel import Channel

_TOUCH_EVERY_S = 1.0
_UNKNOWN_LIMIT = 1 << 20  # bytes of a record from who has not shown who it is


class MeetingHost:
    """Node 0: listens, judges who comes, and answers who comes too late."""

    def __init__(self, terms: Terms) -> None:
        asked, address = terms.asked, terms.address
        self._asked = asked
        self._address = address
        self._hello = terms.hello
        self._settings = terms.settings
        self._tell = terms.tell
        self._output = terms.output.resolve()
        self._secret = secrets.token_bytes(32)
        self._file = self._output / f"{PREFIX}{secrets.token_hex(8)}.json"
        self._table: list[Hello] = []
        self._guests: list[tuple[Hello, NodeLink]] = []
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._accept, name="meeting", daemon=True)
        try:
            self._listener = socket.create_server(
                (address, asked.port), family=family_of(address), backlog=64
            )
        except OSError as error:
            raise UserError(say.cannot_listen(address, asked.port, error)) from error

    def gather(self) -> Met:
        self._write_secret()
        self._thread.start()
        try:
            self._wait()
        except BaseException:
            self._close()
            raise
        return self._assign()

    def _write_secret(self) -> None:
        record = SecretFile(self._secret.hex(), self._address, self._asked.port)
        descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(to_json(record), file)

    def _wait(self) -> None:
        began = told = touched = time.monotonic()
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
            if now - told > TELL_EVERY_S:
                told = now
                self._tell(f"{shown + 1} of {wanted} nodes are here: {', '.join(names)}; waiting")
            if now - touched > _TOUCH_EVERY_S:
                touched = now
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
        connection.settimeout(GREETING_S)
        channel = Channel(connection, limit=_UNKNOWN_LIMIT)
        try:
            challenge = secrets.token_hex(16)
            channel.send(
                Greeting(
                    phalanx=self._hello.facts["versions"]["phalanx"],
                    file=self._file.name,
                    folder=str(self._output),
                    host=self._hello.host,
                    challenge=challenge,
                )
            )
            answer = channel.receive(2 * GREETING_S)
            if not isinstance(answer, Introduction):
                raise EOFError
            proof = prove(self._secret, "guest", challenge, answer.challenge)
            if not is_same(proof, answer.proof):
                raise EOFError
            channel.limit = None
            channel.send(Proof(prove(self._secret, "host", answer.challenge, challenge)))
        except (EOFError, OSError, ValueError):
            connection.close()
            return
        self._judge(answer.hello, connection, channel)

    def _judge(self, guest: Hello, connection: socket.socket, channel: Channel) -> None:
        with self._lock:
            findings = self._against(guest)
            if not findings:
                link = NodeLink(connection, channel, guest.title)
                self._guests.append((guest, link))
                return
        with suppress(EOFError):
            channel.send(Refused(findings))
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
        is_late = bool(self._table) and not guest.is_back
        if is_late or len(self._guests) + 1 >= nodes:
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
        nameless.sort(key=lambda pair: (int(ip_address(pair[0].address)), pair[0].host))
        given = {id(link): rank for (_, link), rank in zip(nameless, free, strict=True)}
        members, links = {0: self._hello}, {}
        for guest, link in self._guests:
            rank = given.get(id(link), guest.node_rank)
            assert rank is not None
            members[rank] = replace(guest, node_rank=rank)
            links[rank] = link
            link.name = members[rank].title
        ordered = [members[rank] for rank in range(self._asked.nodes)]
        self._table = [replace(member, facts={}) for member in ordered]
        for rank, link in links.items():
            link.send(Welcome(rank, self._table))
        return Met(
            0, ordered, self._settings, links, find_again=self._find_again, close=self._close
        )

    def _find_again(self, rank: int) -> NodeLink | None:
        """The line to a node that was lost, once it has come again under its number."""
        with self._lock:
            self._drop_lost()
            back = [(guest, link) for guest, link in self._guests if guest.node_rank == rank]
        for guest, link in back:
            link.name = guest.title
            link.send(Welcome(rank, self._table))
            return link
        return None

    def _close(self) -> None:
        self._is_closed = True
        self._thread.join()
        self._file.unlink(missing_ok=True)
        self._listener.close()
        for _, link in self._guests:
            link.close()
