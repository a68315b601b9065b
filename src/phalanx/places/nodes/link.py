"""The line between the commands of two nodes. A thread keeps it alive and listens, so that either
end knows within seconds that the other is gone, also when the cable is: a cut connection says
nothing."""

from __future__ import annotations

import queue
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

from phalanx.run.channel import Channel, Message

_BEAT_S = 1.0
_PARTING_S = 3.0
LOST_S = 10.0
"""Silence after which the other node counts as lost."""


@dataclass(frozen=True)
class Alive(Message):
    """Sent so that silence means loss."""


class NodeLink:
    """Sends and receives messages; `lost` says why there will be no more."""

    def __init__(self, connection: socket.socket, channel: Channel, name: str) -> None:
        self.name = name
        """The other node, in words."""
        self.lost: str | None = None
        self._socket = connection
        self._channel = channel
        self._sending = threading.Lock()
        self._received: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._is_closed = False
        self._put_back: list[Message] = []
        connection.settimeout(LOST_S / 2)  # a full buffer must not hold up whoever sends
        self._thread = threading.Thread(target=self._keep, name="node link", daemon=True)
        self._thread.start()

    def send(self, message: Message) -> None:
        """Send a message; one that does not get through shows in `lost`."""
        with self._sending:
            if self.lost is not None or self._is_closed:
                return
            try:
                self._channel.send(message)
            except EOFError:
                self.lost = self.lost or "the connection was closed"

    def receive(self, timeout_s: float) -> Message | None:
        """The next message, if one comes within this time. What came before a loss is still had."""
        if self._put_back:
            return self._put_back.pop(0)
        try:
            return self._received.get(timeout=timeout_s) if timeout_s else self._received.get(False)
        except queue.Empty:
            return None

    def put_back(self, messages: list[Message]) -> None:
        """For whoever wants them, after one who waited for another one."""
        self._put_back = [*messages, *self._put_back]

    @property
    def is_over(self) -> bool:
        """Whether the other end is gone and all that it had said was read."""
        return self.lost is not None and self._received.empty() and not self._put_back

    def close(self) -> None:
        """Say no more, and wait a moment for the other end to do the same: what was sent last could
        be lost if this end did not read what is on its way."""
        self._is_closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        self._thread.join(_PARTING_S)
        self._channel.close()

    def _keep(self) -> None:
        heard = sent = time.monotonic()
        while self.lost is None:
            try:
                message = self._channel.receive(_BEAT_S / 2)
            except (EOFError, ValueError, OSError):
                self.lost = self.lost or "the connection was closed"
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_WR)  # the other end may wait for it
                return
            now = time.monotonic()
            if message is not None:
                heard = now
                if not isinstance(message, Alive):
                    self._received.put(message)
            elif now - heard > LOST_S:
                self.lost = f"nothing was heard of it for {LOST_S:.0f} s"
                return
            if now - sent > _BEAT_S:
                sent = now
                self.send(Alive())
