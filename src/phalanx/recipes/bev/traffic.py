"""Drivers in highway-env: its own traffic, an expert behind the ego vehicle's wheel, and a vehicle
that does as it is told.

Imports highway-env: only worlds are built with it, not the model and not the options.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from highway_env.vehicle.behavior import IDMVehicle
from highway_env.vehicle.controller import ControlledVehicle
from highway_env.vehicle.kinematics import Vehicle

_TIMES = np.arange(0.0, 4.01, 0.25)  # at which an expert looks ahead
_DISCS = np.array([-1.8, 0.0, 1.8])  # a vehicle of 5 x 2 m as three discs along it
_APART_M = 2 * 1.25 + 0.7  # their diameter, and room to spare
_SPEED_UP = 2.5  # m/s2, what going means
_BRAKES = (0.0, -2.0, -4.0, -6.0)


class Traffic(IDMVehicle):  # type: ignore[misc]
    """The other vehicles: IDM along their lane, MOBIL between lanes."""


class CrossingTraffic(IDMVehicle):  # type: ignore[misc]
    """The other vehicles of the intersection, which sets gaps and accelerations on the class that
    it is given: on IDMVehicle itself they would change every other scenario in the process."""


class Expert(IDMVehicle):  # type: ignore[misc]
    """highway-env's IDM and MOBIL in the place of the ego vehicle.

    IDM sees its own lane only. Where roads cross, this one also looks where everybody may be in
    the next seconds, and waits at its line, or brakes, where it might meet somebody: highway-env's
    own rules stop in the middle of the intersection and know none for a roundabout. It goes by
    what a planner can see as well: not by the routes of others."""

    line: tuple[str, str, float] | None = None
    """The road at whose end it may have to wait, and how far before the end; None: nothing
    crosses."""
    cruise = 0.0
    """What it would like to drive: highway-env's rules set `target_speed` to 0."""

    def act(self, action: Any = None) -> None:
        if self.line is not None:
            self.target_speed = self.cruise
        super().act()
        if self.line is not None and not self.crashed:
            wanted = self.action["acceleration"]
            self.action["acceleration"] = min(wanted, self._careful(wanted))

    def _careful(self, wanted: float) -> float:
        """The most that it may accelerate."""
        others = [v for v in self.road.vehicles if v is not self and self._matters(v)]
        if not others:
            return wanted
        ways = [(v, way) for v in others for way in _possible_ways(v)]
        theirs = np.stack([_discs(*_predict(v, way, v.speed * _TIMES)) for v, way in ways])
        start, end, before_m = self.line  # type: ignore[misc]
        lane = self.road.network.get_lane((start, end, 0))
        left_m = lane.length - before_m - lane.local_coordinates(self.position)[0]
        is_before = self.target_lane_index[:2] == (start, end) and left_m > -1.0
        if is_before and self._may_stop(left_m):
            if not self._meets(theirs, _SPEED_UP):
                return wanted
            return float(-(max(self.speed, 0.0) ** 2) / (2 * max(left_m, 0.4)))
        for brake in _BRAKES:
            if not self._meets(theirs, brake):
                return brake if brake else wanted
        return _BRAKES[-1]

    def _may_stop(self, left_m: float) -> bool:
        return bool(self.speed**2 / 2 / self.ACC_MAX < left_m + 0.5)

    def _matters(self, other: Any) -> bool:
        """Not who is far away, and not who is behind, whose business this vehicle is."""
        offset = other.position - self.position
        ahead = float(offset @ self.direction)
        across = float(abs(offset[1] * self.direction[0] - offset[0] * self.direction[1]))
        return bool(np.linalg.norm(offset) < 60 and not (ahead < -2.0 and across < 3.0))

    def _meets(self, theirs: np.ndarray, acceleration: float) -> bool:
        speeds = np.clip(self.speed + acceleration * _TIMES, 0.0, max(self.cruise, self.speed))
        ways = np.concatenate([[0.0], np.cumsum((speeds[1:] + speeds[:-1]) / 2 * _TIMES[1])])
        own = _discs(*_predict(self, _own_way(self), ways))
        gaps = np.linalg.norm(own[None, :, :, None] - theirs[:, :, None, :], axis=-1)
        return bool((gaps < _APART_M).any())


class CrossingExpert(Expert):
    """The ego vehicle of the intersection, with the gaps of its traffic."""

    DISTANCE_WANTED = 7.0
    COMFORT_ACC_MAX = 6.0
    COMFORT_ACC_MIN = -3.0


class Driven(ControlledVehicle):  # type: ignore[misc]
    """A vehicle that does what it was last told; others see its route, as they see an expert's."""

    def act(self, action: Any = None) -> None:
        Vehicle.act(self, action)


def _own_way(vehicle: Any) -> list[Any]:
    """The lanes from the one that it is heading for, along its route."""
    network, target = vehicle.road.network, vehicle.target_lane_index
    chain = [network.get_lane(target)]
    for start, end, index in vehicle.route or ():
        if (start, end) != target[:2]:
            chain.append(_lane(network, start, end, target[2] if index is None else index))
    return chain


def _possible_ways(vehicle: Any) -> list[list[Any]]:
    """The same for somebody whose route cannot be seen: whichever turn may be next."""
    network, target = vehicle.road.network, vehicle.target_lane_index
    now, middle = network.get_lane(target), target[1]
    ways = []
    for end in network.graph.get(middle, ()):
        after = next(iter(network.graph.get(end, ())), None)
        way = [now, _lane(network, middle, end, target[2])]
        ways.append(way if after is None else [*way, _lane(network, end, after, target[2])])
    return ways or [[now]]


def _lane(network: Any, start: str, end: str, index: int) -> Any:
    several = network.graph[start][end]
    return several[min(index, len(several) - 1)]


def _predict(vehicle: Any, chain: list[Any], ways: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions and headings of a vehicle along some lanes, after some metres each."""
    along, across = chain[0].local_coordinates(vehicle.position)
    positions, headings = [], []
    piece, passed = 0, 0.0
    for way in along + ways:
        while way - passed > chain[piece].length and piece + 1 < len(chain):
            passed += chain[piece].length
            piece += 1
        lane, place = chain[piece], way - passed
        # What it is beside its lane now it will not be for long.
        beside = across * max(0.0, 1 - (way - along) / 10.0) if piece == 0 else 0.0
        positions.append(lane.position(place, beside))
        headings.append(lane.heading_at(place))
    return np.array(positions), np.array(headings)


def _discs(positions: np.ndarray, headings: np.ndarray) -> np.ndarray:
    """Their middles: times x discs x 2."""
    along = np.stack([np.cos(headings), np.sin(headings)], -1)
    return np.asarray(positions[:, None] + _DISCS[:, None] * along[:, None])
