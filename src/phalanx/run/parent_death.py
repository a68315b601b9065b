"""Processes that end with the one that started them."""

from __future__ import annotations

import ctypes
import os
import sys
from signal import SIGTERM, Signals

_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG, prctl(2)


def end_with_parent(number: Signals = SIGTERM, *, parent: int | None = None) -> None:
    """Ask Linux for this signal when the parent dies, at SIGTERM a rank saves first; end at once if
    it, `parent`, has already."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, number)
    if parent is not None and os.getppid() != parent:
        os._exit(1)
