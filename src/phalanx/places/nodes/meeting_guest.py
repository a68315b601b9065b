"""Every other node of a meeting: connects to node 0, for as long as it takes."""

from __future__ import annotations

import secrets
import socket
import time
from dataclasses import replace
from pathlib import Path

from phalanx.errors import UserError
from phalanx.places.nodes import findings as say
from phalanx.places.nodes.link import NodeLink
from phalanx.places.nodes.meeting_terms import (
    GREETING_S,
    PREFIX,
    TELL_EVERY_S,
    Greeting,
    Introduction,
    Met,
    Proof,
    Refused,
    Terms,
    Welcome,
    is_same,
    prove,
    read_secret_file,
)
from phalanx.run.channel import Channel

_TRY_S = 5.0
_RETRY_S = 0.5
_NO_ROUTE_S = 15.0  # a host that does not answer at all will not, however long one waits


class MeetingGuest:
    """Every other node: connects, as long as it takes."""

    def __init__(self, terms: Terms) -> None:
        self._asked = terms.asked
        self._address = terms.address
        self._hello = terms.hello
        self._settings = terms.settings
        self._output = terms.output.resolve()
        self._tell = terms.tell
        self._seen: dict[Path, int] = {}

    def join(self) -> Met:
        asked = self._asked
        connection = self._connect()
        connection.settimeout(GREETING_S)
        channel = Channel(connection)
        try:
            self._prove_ourselves(channel)
        except (EOFError, OSError, ValueError) as error:
            connection.close()
            where = (self._hello.title, self._address, asked.port)
            raise UserError(say.not_ours(*where)) from error
        except UserError:
            connection.close()
            raise
        self._link = link = NodeLink(connection, channel, f"node 0 ({self._address})")
        self._tell(f"{self._hello.title} has met node 0 at {self._address}:{asked.port}")
        while True:
            message = link.receive(0.5)
            if isinstance(message, Refused):
                link.close()
                raise UserError(message.findings)
            if isinstance(message, Welcome):
                mine = message.members[message.rank]
                link.name = message.members[0].title
                self._hello = replace(mine, facts=self._hello.facts, is_back=True)
                return Met(
                    message.rank,
                    message.members,
                    self._settings,
                    {0: link},
                    rejoin=self._rejoin,
                    close=self._close,
                )
            if link.is_over:
                link.close()
                raise UserError(say.node_lost(link.name, str(link.lost)))

    def _close(self) -> None:
        self._link.close()

    def _rejoin(self, timeout_s: float) -> NodeLink | None:
        """A new line to node 0, after the last one was lost. Refused at once when nobody listens
        there any more: its command has ended."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            try:
                socket.create_connection((self._address, self._asked.port), timeout=_TRY_S).close()
                return self.join().links[0]
            except ConnectionRefusedError:
                return None
            except (OSError, UserError):  # no way there yet, or it still counts us as there
                time.sleep(_RETRY_S)
        return None

    def _connect(self) -> socket.socket:
        asked = self._asked
        began = told = time.monotonic()
        no_route_since: float | None = None
        while True:
            try:
                return socket.create_connection((self._address, asked.port), timeout=_TRY_S)
            except OSError as error:
                now = time.monotonic()
                text = (
                    f"timed out after {_TRY_S:.0f} s"
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
            if now - told > TELL_EVERY_S or told == began:
                told = now
                self._tell(
                    f"{self._hello.title}: no node 0 at {self._address}:{asked.port} yet ({text}); "
                    "trying on"
                )
            time.sleep(_RETRY_S)

    def _look_for_another_port(self) -> None:
        """Node 0 may wait at another port: it keeps touching the file that says so."""
        for path in self._output.glob(f"{PREFIX}*.json"):
            try:
                touched = path.stat().st_mtime_ns
                before = self._seen.setdefault(path, touched)
                there = read_secret_file(path)
            except (OSError, ValueError):
                continue
            is_here = there.address == self._address
            if touched != before and is_here and there.port != self._asked.port:
                where = (self._hello.title, self._address, self._asked.port)
                raise UserError(say.other_port(*where, there.port))

    def _prove_ourselves(self, channel: Channel) -> None:
        first = channel.receive(GREETING_S)
        if not isinstance(first, Greeting):
            raise EOFError
        mine = self._hello.facts["versions"]["phalanx"]
        if first.phalanx != mine:  # what follows may have changed between them
            theirs = f"node 0 ({first.host})"
            key = "versions.phalanx"
            raise UserError(say.differ(key, self._hello.title, mine, theirs, first.phalanx))
        secret = self._read_secret(first)
        challenge = secrets.token_hex(16)
        proof = prove(secret, "guest", first.challenge, challenge)
        channel.send(Introduction(proof=proof, challenge=challenge, hello=self._hello))
        answer = channel.receive(GREETING_S)
        expected = prove(secret, "host", challenge, first.challenge)
        if not isinstance(answer, Proof) or not is_same(expected, answer.proof):
            raise EOFError

    def _read_secret(self, first: Greeting) -> bytes:
        path = self._output / Path(first.file).name
        deadline = time.monotonic() + GREETING_S / 2
        while True:
            try:
                return bytes.fromhex(read_secret_file(path).secret)
            except FileNotFoundError as error:
                if time.monotonic() > deadline:
                    self._refuse_folder(first, error)
                time.sleep(0.2)
            except OSError as error:
                self._refuse_folder(first, error)

    def _refuse_folder(self, first: Greeting, error: OSError) -> None:
        there, told = f"node 0 ({first.host})", error.strerror or str(error)
        raise UserError(
            say.not_shared(self._hello.title, there, self._output, first.folder, told)
        ) from error
