"""How the command talks with the process that starts its ranks, and with the commands of other
nodes: messages as JSON records, one per line.

A message is a frozen dataclass, sent with the name of its type. Fields that this version does not
know are ignored, and so are messages.
"""

from __future__ import annotations

import json
import select
import socket
import time
from typing import ClassVar

_CHUNK = 1 << 16
_KIND = "message"


class Message:
    """Base of the frozen dataclasses that are sent."""

    _kinds: ClassVar[dict[str, type[Message]]] = {}

    def __init_subclass__(cls) -> None:
        assert cls.__name__ not in Message._kinds, f"two messages are named {cls.__name__}"
        Message._kinds[cls.__name__] = cls

    def to_line(self) -> bytes:
        # Not when this is imported: torch's import begins before that of pydantic.
        from phalanx.codec import to_json

        return json.dumps({_KIND: type(self).__name__, **to_json(self)}).encode() + b"\n"

    @staticmethod
    def from_line(line: bytes) -> Message | None:
        """Return the message of a line, None for one that this version does not know. Raises
        ValueError if the line is damaged."""
        from phalanx.codec import from_json

        try:
            record = json.loads(line)
        except RecursionError as error:
            raise ValueError("nested too deep") from error
        if not isinstance(record, dict):
            raise ValueError("no record")
        kind = Message._kinds.get(str(record.pop(_KIND, None)))
        return None if kind is None else from_json(kind, record)


class Channel:
    """One end of a socket between two processes. Either learns at once that the other is gone."""

    def __init__(self, end: socket.socket, *, limit: int | None = None) -> None:
        self._socket = end
        self._unread = b""
        self.limit = limit
        """Maximum number of bytes of a message: for an end that has not shown who it is."""

    def send(self, message: Message) -> None:
        """Send a message; EOFError when nobody is there."""
        try:
            self._socket.sendall(message.to_line())
        except OSError as error:
            raise EOFError from error

    @property
    def can_send(self) -> bool:
        """Return True if a short message goes without waiting for the other end to read."""
        return bool(select.select([], [self._socket], [], 0)[1])

    def receive(self, timeout_s: float | None) -> Message | None:
        """Return the next message; None when there is none within this time (None: however long it
        takes). EOFError when the other end is gone, ValueError when it sent a damaged one."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            line = self._read_line(left_s)
            if line is None:
                return None
            message = Message.from_line(line)
            if message is not None:
                return message

    def _read_line(self, timeout_s: float | None) -> bytes | None:
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self._socket], [], [], timeout_s)
            if not ready:
                return None
            try:
                chunk = self._socket.recv(_CHUNK)
            except OSError as error:
                raise EOFError from error
            if not chunk:
                raise EOFError
            self._unread += chunk
            if self.limit is not None and len(self._unread) > self.limit:
                raise EOFError
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def close(self) -> None:
        self._socket.close()
