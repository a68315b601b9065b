"""Which rank of a group that hangs is the one that all others wait for, and at which line.

In this order: a rank that was stopped; ranks that are a step behind; ranks that are not inside an
exchange, by their stacks and where these are missing by their heartbeats; ranks that are inside
another exchange than most. Ranks that all wait at the same place have no culprit among them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.run.heartbeat import Beat, Part, Phase

_PACKAGE = str(Path(__file__).parents[1])
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$', re.MULTILINE)
_THREAD = re.compile(r"^(?:Current thread|Thread|Stack).*most recent call first.*$", re.MULTILINE)
_OUTERMOST = "_run_module_as_main"  # the thread that trains began the process
_WAITING = re.compile(r"/torch/(distributed/|autograd/graph\.py)")
_LIBRARIES = ("site-packages", "dist-packages", "<frozen", "/lib/python")


@dataclass(frozen=True)
class Witness:
    """What a rank says about where it is stuck."""

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


@dataclass(frozen=True)
class Culprit:
    """The rank that all others wait for; None where that cannot be told."""

    rank: int | None
    because: str


def find_culprit(beats: Mapping[int, Beat], witnesses: Mapping[int, Witness]) -> Culprit:
    """The rank to blame, and what says so."""
    ranks = [rank for rank, beat in sorted(beats.items()) if beat.phase is not Phase.OVER]
    if len(ranks) == 1:
        stopped = ranks[0] in witnesses and witnesses[ranks[0]].state == "T"
        because = "it is stopped (state T)" if stopped else "it is the only rank"
        return Culprit(ranks[0], because)
    stopped_ranks = [rank for rank in ranks if rank in witnesses and witnesses[rank].state == "T"]
    if stopped_ranks:
        return _blame(stopped_ranks, "its process is stopped (state T: SIGSTOP or a debugger)")
    last = min(beats[rank].step for rank in ranks)
    behind = [rank for rank in ranks if beats[rank].step == last]
    if len(behind) < len(ranks):
        furthest = max(beats[rank].step for rank in ranks)
        return _blame(behind, f"it has done {last} steps, others {furthest}")
    waiting = {rank: _is_waiting(beats[rank], witnesses.get(rank)) for rank in ranks}
    busy = [rank for rank in ranks if not waiting[rank]]
    if busy and len(busy) < len(ranks):
        return _blame(busy, "the others wait for it inside an exchange, it is not in one")
    places = {rank: _place(beats[rank], witnesses.get(rank)) for rank in ranks}
    counted = Counter(places.values()).most_common()
    if len(counted) > 1 and counted[0][1] > counted[-1][1]:
        usual, rare = counted[0][0], counted[-1][0]
        odd = [rank for rank in ranks if places[rank] == rare]
        return _blame(odd, f"it is at {rare}, while {counted[0][1]} others are at {usual}")
    if len(counted) > 1:
        where = "; ".join(f"rank {rank}: {place}" for rank, place in places.items())
        return Culprit(None, f"the ranks wait at different places: {where}")
    return Culprit(None, f"all ranks are at the same place: {counted[0][0]}")


def _blame(ranks: list[int], because: str) -> Culprit:
    others = f"; so are ranks {', '.join(map(str, ranks[1:]))}" if len(ranks) > 1 else ""
    return Culprit(ranks[0], because + others)


def _is_waiting(beat: Beat, witness: Witness | None) -> bool:
    said = None if witness is None else witness.is_in_exchange
    if said is not None:
        return said
    return beat.phase is Phase.STEP and beat.part in (Part.BACKWARD, Part.AGREE, Part.READ)


def _place(beat: Beat, witness: Witness | None) -> str:
    line = None if witness is None else witness.line
    return line or beat.place
