"""One episode in highway-env: a scenario, its traffic, and the ego vehicle on its route.

Frames are highway-env's and CARLA's: x ahead, y to the right. Nothing of highway-env's own
observations is used: they take longer than the simulation.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from phalanx.recipes.bev.scenarios import HISTORY_S, PLANNED_HZ, ROUTE_M, SIMULATED_HZ, Scenario

_FRAMES = round(max(HISTORY_S) * PLANNED_HZ) + 1
_LANE_LEFT_M = 1.6  # off the middle of a lane of 4 m: another one is meant
_OFF_ROAD_M = 1.5  # beyond the edge of its road, with the middle of the vehicle


@dataclass(frozen=True)
class Frame:
    """Where everybody was at a moment."""

    ego: np.ndarray
    """x, y, heading, speed."""
    others: np.ndarray
    """A row x, y, heading, speed, length, width for each vehicle and obstacle."""


class _Unseen:
    """highway-env's own observation is a pandas frame at every step, which nobody looks at."""

    def observe(self) -> None:
        return None


class World:
    """An episode. `is_expert` says who drives; `hand_over` changes that."""

    def __init__(self, scenario: Scenario, seed: int, *, is_expert: bool) -> None:
        import highway_env.envs

        from phalanx.recipes.bev import traffic

        logging.getLogger("highway_env.road.road").setLevel(logging.ERROR)
        self.scenario = scenario
        rng = np.random.default_rng([seed, 77])
        self.destination = str(rng.choice(list(scenario.routes)))
        self.command = scenario.routes[self.destination]
        self.roads = scenario.roads(self.destination)
        kind = getattr(traffic, scenario.traffic)
        config = {
            "simulation_frequency": SIMULATED_HZ,
            "policy_frequency": PLANNED_HZ,
            "observation": {"type": "Kinematics", "vehicles_count": 1, "features": ["presence"]},
            "other_vehicles_type": f"{kind.__module__}.{kind.__qualname__}",
            **scenario.config,
        }
        if scenario.environment == "IntersectionEnv":
            config["destination"] = f"o{self.destination}"
        # The default of `reset` inside the constructor is unseeded: its traffic is thrown away.
        self.environment = getattr(highway_env.envs, scenario.environment)(config)
        self.environment.reset(seed=seed)
        self.environment.observation_type = _Unseen()
        self.network = self.environment.road.network
        self._chains: dict[tuple[int, int], list[Any]] = {}
        self._place_ego(rng, is_expert)
        for vehicle in self.environment.road.vehicles:
            vehicle.check_collisions = vehicle is self.ego  # others' own cost time
        self._road = 0
        self.progress_m = 0.0
        self._begun_m = 0.0
        self.time_s = 0.0
        self.is_off_road = False
        self._frames: deque[Frame] = deque(maxlen=_FRAMES)
        self._look()
        self._begun_m, self.progress_m = self._along_m, 0.0
        self.route_m = self._route_length()

    def _place_ego(self, rng: np.random.Generator, is_expert: bool) -> None:
        scenario, old = self.scenario, self.environment.vehicle
        lane = self.network.get_lane(old.lane_index)
        along, _ = lane.local_coordinates(old.position)
        along += rng.uniform(*scenario.start_m)
        self._state = {
            "position": lane.position(along, 0.0),
            "heading": lane.heading_at(along),
            "speed": float(rng.uniform(*scenario.speeds)),
            "cruise": float(rng.uniform(*scenario.cruise)),
        }
        self.ego = self._make_ego(is_expert, lane_index=old.lane_index)
        vehicles = self.environment.road.vehicles
        vehicles[vehicles.index(old)] = self.ego
        self.environment.vehicle = self.ego
        # Nobody begins inside somebody else's gap.
        self.environment.road.vehicles = [
            vehicle
            for vehicle in vehicles
            if vehicle is self.ego
            or np.linalg.norm(vehicle.position - self.ego.position) > 8 + 0.3 * self.ego.speed
        ]

    def _make_ego(self, is_expert: bool, *, lane_index: Any) -> Any:
        from phalanx.recipes.bev import traffic

        kind = getattr(traffic, self.scenario.expert) if is_expert else traffic.Driven
        lanes = [(start, end, None) for start, end in self.roads]
        ego = kind(
            self.environment.road,
            self._state["position"].copy(),
            heading=self._state["heading"],
            speed=self._state["speed"],
            target_lane_index=lane_index,
            target_speed=self._state["cruise"],
            route=lanes,
        )
        if is_expert:
            ego.line, ego.cruise = self.scenario.line, self._state["cruise"]
        return ego

    def hand_over(self) -> None:
        """From here on the expert drives, from where the vehicle is."""
        old = self.ego
        self._state |= {"position": old.position, "heading": old.heading, "speed": old.speed}
        lane, index = self._lane()
        del lane
        self.ego = self._make_ego(True, lane_index=(*self.roads[self._road], index))
        self.ego.route = [(start, end, None) for start, end in self.roads[self._road :]]
        vehicles = self.environment.road.vehicles
        vehicles[vehicles.index(old)] = self.ego
        self.environment.vehicle = self.ego

    def step(self, steering: float | None = None, acceleration: float | None = None) -> None:
        """Let a planned step pass; an expert needs no command."""
        if steering is not None:
            self.ego.act({"steering": steering, "acceleration": acceleration})
        self.environment.step(None)
        self.time_s += 1 / PLANNED_HZ
        self._look()

    def _look(self) -> None:
        road, ego = self.environment.road, self.ego
        others = [v for v in [*road.vehicles, *road.objects] if v is not ego]
        for vehicle in others:
            vehicle.check_collisions = False
        self._frames.append(
            Frame(
                np.array([*ego.position, ego.heading, ego.speed]),
                np.array(
                    [[*v.position, v.heading, v.speed, v.LENGTH, v.WIDTH] for v in others]
                ).reshape(-1, 6),
            )
        )
        self._follow_route()

    def _follow_route(self) -> None:
        lane, _ = self._lane()
        along, across = lane.local_coordinates(self.ego.position)
        while along > lane.length and self._road + 1 < len(self.roads):
            self._road += 1
            lane, _ = self._lane()
            along, across = lane.local_coordinates(self.ego.position)
        passed = sum(self._length(road) for road in range(self._road))
        self._along_m = passed + along * self._length(self._road) / lane.length
        self.progress_m = max(self.progress_m, self._along_m - self._begun_m)
        if abs(across) > lane.width_at(along) / 2 + _OFF_ROAD_M:
            self.is_off_road = True

    def _length(self, road: int) -> float:
        start, end = self.roads[road]
        return float(self.network.graph[start][end][0].length)

    def _route_length(self) -> float:
        if self.scenario.length_m is not None:
            return self.scenario.length_m
        before = sum(self._length(road) for road in range(len(self.roads) - 1))
        return before + self.scenario.beyond_m - self._begun_m

    def _lane(self) -> tuple[Any, int]:
        """The lane of the present road that the ego vehicle is nearest to."""
        start, end = self.roads[self._road]
        lanes = self.network.graph[start][end]
        usable = [i for i, lane in enumerate(lanes) if not lane.forbidden] or [0]
        index = min(usable, key=lambda i: abs(lanes[i].local_coordinates(self.ego.position)[1]))
        return lanes[index], index

    def _chain(self, index: int) -> list[Any]:
        """The lanes from this one on, to the end of the route."""
        place = (self._road, index)
        if place not in self._chains:
            start, end = self.roads[self._road]
            chain = [self.network.graph[start][end][index]]
            for start, end in self.roads[self._road + 1 :]:
                last = chain[-1].position(chain[-1].length, 0)
                lanes = [x for x in self.network.graph[start][end] if not x.forbidden]
                chain.append(min(lanes, key=lambda lane: abs(lane.local_coordinates(last)[1])))
            self._chains[place] = chain
        return self._chains[place]

    @property
    def frames(self) -> list[Frame]:
        """What was seen at the ages of HISTORY_S; in the first moments, the oldest there is."""
        newest_first = list(reversed(self._frames))
        ages = [round(age * PLANNED_HZ) for age in HISTORY_S]
        return [newest_first[min(age, len(newest_first) - 1)] for age in ages]

    def keeps_lane(self, point: np.ndarray) -> bool:
        """Whether a point of a plan, in the world's frame, belongs to the present lane or what it
        leads to: there is no other one, or it is nearer to this one's middle."""
        start, end = self.roads[self._road]
        if sum(not lane.forbidden for lane in self.network.graph[start][end]) == 1:
            return True
        _, index = self._lane()
        places = [lane.local_coordinates(point) for lane in self._chain(index)]
        lengths = [lane.length for lane in self._chain(index)]
        beside = [
            abs(across)
            for (along, across), length in zip(places, lengths, strict=True)
            if -3.0 < along < length + 3.0
        ]
        return not beside or min(beside) < _LANE_LEFT_M

    def route_ahead(self, distances: Sequence[float] = ROUTE_M) -> np.ndarray:
        """Points of the route at some distances, in the world's frame."""
        lane, index = self._lane()
        chain = self._chain(index)
        along = max(lane.local_coordinates(self.ego.position)[0], 0.0)
        points = []
        for distance in distances:
            left = along + distance
            for piece in chain:
                if left <= piece.length or piece is chain[-1]:
                    points.append(piece.position(left, 0.0))
                    break
                left -= piece.length
        return np.array(points)

    @property
    def is_crashed(self) -> bool:
        return bool(self.ego.crashed)

    @property
    def completion(self) -> float:
        return float(np.clip(self.progress_m / self.route_m, 0.0, 1.0))

    @property
    def has_arrived(self) -> bool:
        return bool(self.progress_m >= self.route_m)

    @property
    def is_over(self) -> bool:
        return (
            self.is_crashed
            or self.is_off_road
            or self.has_arrived
            or self.time_s >= self.scenario.duration_s
        )
