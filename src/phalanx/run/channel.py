"""How the command talks with the process that starts its ranks, and with the commands of other
nodes: JSON records, one per line."""

from __future__ import annotations

import json
import select
import socket
from typing import Any

_CHUNK = 1 << 16


class Channel:
    """One end of a socket between two processes. Either learns at once that the other is gone."""

    def __init__(self, end: socket.socket, *, limit: int | None = None) -> None:
        self._socket = end
        self._unread = b""
        self.limit = limit
        """Bytes of a record, at most: for an end that has not shown who it is."""

    def send(self, record: dict[str, Any]) -> None:
        """Send a record; EOFError when nobody is there."""
        try:
            self._socket.sendall(json.dumps(record).encode() + b"\n")
        except OSError as error:
            raise EOFError from error

    @property
    def can_send(self) -> bool:
        """Whether a short record would go without waiting for the other end to read."""
        return bool(select.select([], [self._socket], [], 0)[1])

    def receive(self, timeout_s: float | None) -> dict[str, Any] | None:
        """The next record; None when there is none within this time (None: however long it
        takes). EOFError when the other end is gone."""
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
        record: dict[str, Any] = json.loads(line)
        return record

    def close(self) -> None:
        self._socket.close()
