"""A curve that never grows beyond a fixed number of points: when it is full, neighbours are joined,
and each point keeps the least and the most of what it stands for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isfinite
from typing import NamedTuple

POINTS = 2000
"""As many as a wide screen can show."""


class Point(NamedTuple):
    """What happened at one place of a curve, or between the place before and this one."""

    step: float
    time_s: float
    value: float
    low: float
    high: float


@dataclass
class Series:
    """Points in the order in which they came."""

    _limit: int = POINTS
    _points: list[Point] = field(default_factory=list)
    _waiting: list[Point] = field(default_factory=list)
    per_point: int = 1
    """How many of what came are joined into one point."""
    num_bad: int = 0
    """Values that were not finite and are in no point."""

    def add(self, step: float, time_s: float, value: float) -> None:
        """Take the next value."""
        if not isfinite(value):
            self.num_bad += 1
            return
        self._waiting.append(Point(step, time_s, value, value, value))
        if len(self._waiting) >= self.per_point:
            self._points.append(_join(self._waiting))
            self._waiting = []
        if len(self._points) >= 2 * self._limit:
            pairs = zip(self._points[::2], self._points[1::2], strict=True)
            self._points = [_join(pair) for pair in pairs]
            self.per_point *= 2

    def take_part(self, low: float, high: float) -> None:
        """Values between two that are added: of these only how far they went is kept."""
        points = self._waiting or self._points
        if points:
            last = points[-1]
            points[-1] = last._replace(low=min(last.low, low), high=max(last.high, high))

    def cut_after(self, step: float) -> None:
        """Forget what came after a step: the run has gone back to it."""
        self._waiting = [point for point in self._waiting if point.step <= step]
        while self._points and self._points[-1].step > step:
            self._points.pop()

    def points(self) -> list[Point]:
        """All of it, the newest value included."""
        return [*self._points, _join(self._waiting)] if self._waiting else list(self._points)

    def __iter__(self) -> Iterator[Point]:
        return iter(self.points())

    def __len__(self) -> int:
        return len(self._points) + bool(self._waiting)

    @property
    def last(self) -> Point | None:
        points = self._waiting or self._points
        return points[-1] if points else None


def _join(points: list[Point] | tuple[Point, ...]) -> Point:
    last = points[-1]
    low, high = min(point.low for point in points), max(point.high for point in points)
    return Point(last.step, last.time_s, last.value, low, high)
