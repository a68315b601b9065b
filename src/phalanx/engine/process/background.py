"""Work beside training: one piece at a time, in a thread.

A thread, because writing, waiting for a disk and checksums run without the interpreter's lock, and
because it shares the copies it writes. A process would have to be forked from one with threads and
an open GPU, or take seconds to import torch, and get gigabytes handed over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Background:
    """Runs one piece of work at a time; the next one waits for it."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self, work: Callable[[], None]) -> None:
        """Begin a piece of work, which keeps its exceptions to itself."""
        self.wait()
        # Not waited for by an interpreter that ends: whoever must wait calls `wait`.
        self._thread = threading.Thread(target=work, name="checkpoint-writer", daemon=True)
        self._thread.start()

    def wait(self) -> float:
        """Wait for what is under way; returns the seconds that took."""
        if self._thread is None:
            return 0.0
        started = time.perf_counter()
        self._thread.join()
        self._thread = None
        return time.perf_counter() - started
