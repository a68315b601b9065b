"""Where a rank is stuck, as it says itself when it is asked."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PACKAGE = str(Path(__file__).parents[1])
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$', re.MULTILINE)
_THREAD = re.compile(r"^(?:Current thread|Thread|Stack).*most recent call first.*$", re.MULTILINE)
_OUTERMOST = "_run_module_as_main"  # the thread that trains began the process
_WAITING = re.compile(r"/torch/(distributed/|autograd/graph\.py)")
_LIBRARIES = ("site-packages", "dist-packages", "<frozen", "/lib/python")


@dataclass(frozen=True)
class Witness:
    """The state and the stacks of one rank."""

    rank: int
    state: str
    """Of its process, as in proc(5): T is stopped, R computes, S and D wait."""
    stacks: str
    """Of its threads; empty when it could not answer."""
    collectives: Any = None
    """The last entries of torch's Flight Recorder, if it could answer."""

    @property
    def frames(self) -> list[tuple[str, int, str]]:
        """File, line and function of the training thread, innermost first."""
        blocks = _THREAD.split(self.stacks)[1:]
        training = next((block for block in blocks if _OUTERMOST in block), None)
        block = training or (blocks[-1] if blocks else "")
        return [(f["file"], int(f["line"]), f["name"]) for f in _FRAME.finditer(block)]

    @property
    def line(self) -> str | None:
        """`recipe.py:83 in loss`: the innermost line that its author can mend."""
        frames = self.frames
        own = [f for f in frames if not any(word in f[0] for word in (*_LIBRARIES, _PACKAGE))]
        ours = [f for f in frames if _PACKAGE in f[0]]
        shown = next(iter([*own, *ours, *frames]), None)
        return None if shown is None else f"{shown[0]}:{shown[1]} in {shown[2]}"

    @property
    def is_in_exchange(self) -> bool | None:
        """Whether it waits for the others; None when its stacks do not say."""
        frames = self.frames
        return bool(_WAITING.search(frames[0][0])) if frames else None
