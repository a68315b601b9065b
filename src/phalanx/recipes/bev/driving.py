"""Episodes in the loop: a world, somebody who plans, and pure pursuit behind the plan.

Read in the processes of roll-outs: imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from phalanx.recipes.bev.collecting import observe
from phalanx.recipes.bev.follower import constant_velocity, follow
from phalanx.recipes.bev.grid import road_map, to_ego, to_world
from phalanx.recipes.bev.scenarios import PLANNED_HZ, SCENARIOS, WAYPOINT_S, WAYPOINTS
from phalanx.recipes.bev.world import World

Driver = Literal["model", "expert", "constant velocity"]
DRIVERS: tuple[Driver, ...] = ("model", "expert", "constant velocity")
_MEANT_S = 2.0  # a plan that is beside its lane by then leaves it
_COLLISION = 0.6  # CARLA leaderboard's factor for a collision with a vehicle


class Episode(NamedTuple):
    """What is to be driven."""

    scenario: str
    seed: int
    driver: Driver
    max_steps: int | None = None
    horizon: int = 1
    is_filmed: bool = False


@dataclass(frozen=True)
class Drive:
    """How it went."""

    is_crashed: bool
    is_off_road: bool
    has_arrived: bool
    completion: float
    seconds: float
    films: list[np.ndarray]

    @property
    def score(self) -> float:
        """The CARLA leaderboard's: the share of the route, less for a collision."""
        return 100 * self.completion * (_COLLISION if self.is_crashed else 1.0)


def drive(episode: Episode) -> Generator[dict[str, np.ndarray], Any, Drive]:
    """One episode; a model is asked for its plans, the others know what to do."""
    world = World(SCENARIOS[episode.scenario], episode.seed, is_expert=episode.driver == "expert")
    roads = road_map(world)
    films: list[np.ndarray] = []
    most = episode.max_steps or 10**6
    steps = 0
    plan: np.ndarray | None = None
    deviation: np.ndarray | None = None
    planned_at, age = np.zeros(4), 0
    while not world.is_over and steps < most:
        pose = world.frames[0].ego
        if episode.driver == "model" and (plan is None or age >= episode.horizon):
            seen = observe(
                roads, world.frames, world.route_ahead(), pose[:3], float(pose[3]), world.command
            )
            plan, deviation = yield seen
            planned_at, age = pose.copy(), 0
        if episode.is_filmed:
            from phalanx.recipes.bev.pictures import draw_scene

            films.append(draw_scene(world, roads, plan, deviation))
        if episode.driver == "expert":
            world.step()
        else:
            speed = float(pose[3])
            if plan is None:
                command = follow(constant_velocity(speed, WAYPOINTS, WAYPOINT_S), speed, WAYPOINT_S)
            else:
                ahead = what_is_left(plan, age / PLANNED_HZ, planned_at, pose)
                command = follow(ahead, speed, WAYPOINT_S, _lane_of(world, ahead, pose))
            world.step(*command)
        steps += 1
        age += 1
    return Drive(
        world.is_crashed,
        world.is_off_road,
        world.has_arrived,
        world.completion,
        steps / PLANNED_HZ,
        films,
    )


def _lane_of(
    world: World, plan: np.ndarray, pose: np.ndarray
) -> Callable[[float], np.ndarray] | None:
    """The middle of the lane, where a plan stays in it."""
    meant = to_world(plan[round(_MEANT_S / WAYPOINT_S) - 1], pose[:3])
    if not world.keeps_lane(meant):
        return None
    return lambda reach: to_ego(world.route_ahead([reach])[0], pose[:3])


def what_is_left(
    plan: np.ndarray, age_s: float, planned_at: np.ndarray, pose: np.ndarray
) -> np.ndarray:
    """A plan of some age from where the vehicle is now; it goes on as it ends."""
    if age_s == 0:
        return plan
    last = plan[-1] - plan[-2]
    steps = np.arange(1, WAYPOINTS + 1)
    known = np.concatenate([np.zeros((1, 2)), plan, plan[-1] + steps[:, None] * last])
    times = WAYPOINT_S * np.arange(len(known))
    wanted = age_s + WAYPOINT_S * steps
    points = np.stack([np.interp(wanted, times, known[:, axis]) for axis in (0, 1)], -1)
    return to_ego(to_world(points, planned_at[:3]), pose[:3])
