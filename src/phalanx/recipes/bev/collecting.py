"""Episodes of the expert, turned into samples: what was seen, and where the expert then was.

Two things teach a planner to come back from where an expert never is. An episode may begin with a
clumsy driver, whose seconds are thrown away, and the expert takes over from there. And from each
moment a second sample is made as if the vehicle stood beside its place and turned: it is drawn
anew from there, and its way leads back to the expert's within about a second.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from phalanx.recipes.bev.grid import RoadMap, draw, road_map, to_ego, to_world
from phalanx.recipes.bev.scenarios import HISTORY_S, PLANNED_HZ, SCENARIOS, WAYPOINT_S, WAYPOINTS
from phalanx.recipes.bev.world import Frame, World

_EVERY = 3  # planned steps from one sample to the next
_CLUMSY = 0.5  # of the episodes begin so,
_CLUMSY_S = 3.0  # for at most so long
_BACK_S = 0.7  # in which a displacement falls to a third
_SHIFT_M, _TURN, _FASTER = 0.5, 0.06, 1.0  # standard deviations of displacements


class _Moment(NamedTuple):
    frames: list[Frame]
    route: np.ndarray


def collect_episode(scenario_name: str, seed: int) -> dict[str, np.ndarray]:
    """The samples of one episode."""
    rng = np.random.default_rng([seed, 5])
    scenario = SCENARIOS[scenario_name]
    is_clumsy = rng.random() < _CLUMSY
    world = World(scenario, seed, is_expert=not is_clumsy)
    if is_clumsy:
        _drive_clumsily(world, rng)
        world.hand_over()
    roads = road_map(world)
    moments: list[_Moment] = []
    after = round(WAYPOINTS * WAYPOINT_S * PLANNED_HZ)
    poses, left = [], after
    while not world.is_crashed and left:
        frames = world.frames
        poses.append(frames[0].ego)
        if not world.is_over:
            moments.append(_Moment(frames, world.route_ahead()))
        else:
            left -= 1
        if world.is_off_road or world.time_s > 60:
            break
        world.step()
    known = np.array(poses)
    samples = []
    for index, moment in enumerate(moments):
        # Half a waypoint's time lies between two planned steps: waypoints are interpolated.
        if index % _EVERY or index + after >= len(known):
            continue
        future = _at_waypoints(known[index:])
        pose, speed = known[index, :3], known[index, 3]
        samples.append(_sample(roads, moment, pose, speed, future, world.command))
        shift = rng.normal(0, _SHIFT_M) * min(1.0, speed / 5)
        turn = rng.normal(0, _TURN) * min(1.0, speed / 5)
        beside = to_world(np.array([0.0, shift]), pose)
        faster = float(np.clip(rng.normal(0, _FASTER), -speed, None))
        displaced = np.array([*beside, pose[2] + turn])
        back = _come_back(future, pose, displaced, speed, speed + faster)
        samples.append(_sample(roads, moment, displaced, speed + faster, back, world.command))
    if not samples:
        return {}
    return {name: np.stack([sample[name] for sample in samples]) for name in samples[0]}


def _drive_clumsily(world: World, rng: np.random.Generator) -> None:
    """Along the route with a wandering wheel and pedal."""
    from phalanx.recipes.bev.follower import follow

    wheel, pedal = 0.0, 0.0
    for _ in range(int(rng.uniform(0.6, _CLUMSY_S) * PLANNED_HZ)):
        pose = world.frames[0].ego
        speed = float(pose[3])
        wheel = 0.8 * wheel + rng.normal(0, 0.02)
        pedal = 0.8 * pedal + rng.normal(0, 0.8)
        route = to_ego(world.route_ahead(), pose[:3])
        far = np.linalg.norm(route, axis=1)
        times = WAYPOINT_S * np.arange(1, WAYPOINTS + 1)
        plan = np.stack([np.interp(speed * times, far, route[:, axis]) for axis in (0, 1)], -1)
        steering, acceleration = follow(plan, speed, WAYPOINT_S)
        world.step(steering + wheel, float(np.clip(acceleration + pedal, -3, 2)))


def _at_waypoints(poses: np.ndarray) -> np.ndarray:
    """Positions at the times of the waypoints, from those at each planned step."""
    times = np.arange(len(poses)) / PLANNED_HZ
    wanted = WAYPOINT_S * np.arange(1, WAYPOINTS + 1)
    return np.stack([np.interp(wanted, times, poses[:, axis]) for axis in (0, 1)], -1)


def _come_back(
    future: np.ndarray, pose: np.ndarray, displaced: np.ndarray, speed: float, now: float
) -> np.ndarray:
    """The expert's way from another pose and speed: what differs dies away."""
    times = WAYPOINT_S * np.arange(1, WAYPOINTS + 1)
    fades = np.exp(-times / _BACK_S)[:, None]
    # The heading and the speed of now carry the vehicle while they last.
    ahead = np.array([np.cos(displaced[2]), np.sin(displaced[2])]) * now
    were = np.array([np.cos(pose[2]), np.sin(pose[2])]) * speed
    carried = (ahead - were) * (times * np.exp(-times / _BACK_S))[:, None]
    return np.asarray(future + (displaced[:2] - pose[:2]) * fades + carried)


def _sample(
    roads: RoadMap,
    moment: _Moment,
    pose: np.ndarray,
    speed: float,
    future: np.ndarray,
    command: int,
) -> dict[str, np.ndarray]:
    return {
        **observe(roads, moment.frames, moment.route, pose, speed, command),
        "plan": to_ego(future, pose).astype(np.float32),
    }


def observe(
    roads: RoadMap,
    frames: list[Frame],
    route: np.ndarray,
    pose: np.ndarray,
    speed: float,
    command: int,
) -> dict[str, np.ndarray]:
    """What a planner is given."""
    assert len(frames) == len(HISTORY_S)
    return {
        "bev": draw(roads, frames, pose),
        "speed": np.array(speed, np.float32),
        "command": np.array(command, np.int64),
        "route": to_ego(route, pose).astype(np.float32),
    }
