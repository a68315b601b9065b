"""Which rank of a group that hangs is the one that all others wait for, and at which line.

In this order: a rank that was stopped; ranks that are a step behind; ranks that are not inside an
exchange, by their stacks and where these are missing by their heartbeats; ranks that are inside
another exchange than most. Ranks that all wait at the same place have no culprit among them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from phalanx.run.heartbeat import Beat, Part, Phase
from phalanx.run.launching import Witness


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
