"""How a command that owns a run hears that it should stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ONCE = (signal.SIGHUP, signal.SIGUSR1)


@contextmanager
def hearing_stops(
    asked: list[signal.Signals], *further: signal.Signals
) -> Iterator[list[signal.Signals]]:
    """Add SIGINT, SIGTERM and those named to `asked` as they come: the first asks for an end in
    order, a second one for an end now.

    SIGHUP is among them unless it is ignored, as under nohup and in a detached run. A terminal that
    is closed sends it twice (the kernel, then the shell), and a scheduler its SIGUSR1 as often as
    it likes: they count once, and not after another one. Only the main thread can hear."""
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if number not in _ONCE or not asked:
            asked.append(signal.Signals(number))

    numbers = [signal.SIGINT, signal.SIGTERM, *further]
    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
