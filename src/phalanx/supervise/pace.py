"""What each rank's steps go to, as `pace` events: from the heartbeats, every few seconds."""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.planner.schema.plan import Plan
from phalanx.run.event_kinds import Pace
from phalanx.run.heartbeat import Beat, Part, Phase
from phalanx.supervise.straggler import comparable_parts

_FIRST_S = 1.0
_EVERY_S = 5.0
_RANKS_PER_S = 8  # of more ranks less often: a line has some 50 bytes for each


class PaceMeter:
    """One record for all ranks, of what they did since the one before."""

    def __init__(self, plan: Plan) -> None:
        self._alone = [part.name.lower() for part in comparable_parts(plan)]
        self._every_s = max(_EVERY_S, plan.devices.ranks.value / _RANKS_PER_S)
        self._before: dict[int, Beat] = {}
        self._since: float | None = None
        self._wait_s = _FIRST_S

    def look(self, beats: Mapping[int, Beat], now: float) -> list[Pace]:
        """The record, when it is time and somebody has made a step; nothing otherwise."""
        steady = {
            rank: beat
            for rank, beat in beats.items()
            if beat.phase not in (Phase.START, Phase.COMPILE)
        }
        if self._since is None:
            if steady:
                self._since, self._before = now, steady
            return []
        if now - self._since < self._wait_s:
            return []
        rows = [
            [rank, beat.step - self._before[rank].step, *_spent(self._before[rank], beat)]
            for rank, beat in sorted(steady.items())
            if rank in self._before and beat.step > self._before[rank].step
        ]
        if not rows:
            return []
        pace = Pace(
            seconds=round(now - self._since, 3),
            parts=[part.name.lower() for part in Part],
            alone=self._alone,
            ranks=rows,
        )
        self._since, self._before, self._wait_s = now, steady, self._every_s
        return [pace]


def _spent(before: Beat, after: Beat) -> list[float]:
    return [round(b - a, 6) for a, b in zip(before.seconds, after.seconds, strict=True)]
