"""Drivers in highway-env: its own IDM and MOBIL behind the wheel, or a plan that is followed.

Imports highway-env: only worlds are built with it, not the model and not the options.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from highway_env.vehicle.behavior import IDMVehicle
from highway_env.vehicle.controller import ControlledVehicle
from highway_env.vehicle.kinematics import Vehicle


class Traffic(IDMVehicle):  # type: ignore[misc]
    """The other vehicles."""


class CrossingTraffic(IDMVehicle):  # type: ignore[misc]
    """The other vehicles of the intersection, which sets gaps and accelerations on the class that
    it is given: on IDMVehicle itself they would change every other scenario in the process."""


class Expert(Traffic):
    """highway-env's driver in the place of the ego vehicle: IDM along the lane, MOBIL between
    lanes. At a roundabout it gives way, which IDM alone does not: it sees its own lane only."""

    give_way_to: tuple[str, ...] = ()
    """Nodes of the roads that have the right of way."""
    give_way_at: tuple[str, str] | None = None
    """The road at whose end the ego vehicle waits."""

    def acceleration(
        self, ego_vehicle: Any, front_vehicle: Any = None, rear_vehicle: Any = None
    ) -> float:
        wanted: float = super().acceleration(ego_vehicle, front_vehicle, rear_vehicle)
        if ego_vehicle is self and self.give_way_at is not None:
            wanted = min(wanted, self._give_way())
        return wanted

    def _give_way(self) -> float:
        """Brake for the line at the end of this road while somebody comes; infinite otherwise."""
        lane = self.road.network.get_lane((*self.give_way_at, 0))
        along, across = lane.local_coordinates(self.position)
        left_m = lane.length - along - GIVE_WAY_BEFORE_M
        is_there = abs(across) < lane.width_at(along) and self.lane_index[:2] == self.give_way_at
        if not is_there or not -2.0 < left_m < 40.0:
            return float("inf")
        if self.speed**2 / 2 / self.ACC_MAX > left_m + 1.0:  # too late to stop: go on
            return float("inf")
        entry = lane.position(lane.length, 0)
        arrival_s = max(left_m + GIVE_WAY_BEFORE_M, 0.0) / max(self.speed, 4.0)
        for other in self.road.vehicles:
            if other is self or other.lane_index[0] not in self.give_way_to:
                continue
            ahead_m = float(np.dot(entry - other.position, other.direction))
            away_m = float(np.linalg.norm(entry - other.position))
            passes_s = away_m / max(other.speed, 1.0)
            is_coming = ahead_m > -6.0 and away_m < 45.0
            if is_coming and passes_s < arrival_s + 2.5:
                return float(-(self.speed**2) / (2 * max(left_m, 0.5))) - 0.2
        return float("inf")


class CrossingExpert(CrossingTraffic):
    """The ego vehicle of the intersection, whose rules make it yield."""


class Driven(ControlledVehicle):  # type: ignore[misc]
    """A vehicle that does what it was last told; others see its route, as they see an expert's."""

    def act(self, action: Any = None) -> None:
        Vehicle.act(self, action)


GIVE_WAY_BEFORE_M = 6.0
"""Where a vehicle's centre waits, before the end of its road."""
