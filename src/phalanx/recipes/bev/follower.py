"""Pure pursuit: from a plan to steering and acceleration.

R. C. Coulter, "Implementation of the Pure Pursuit Path Tracking Algorithm", CMU-RI-TR-92-01: steer
along the circle through a point of the path that is some distance ahead. The vehicle is
highway-env's: a bicycle whose centre is half its length in front of the rear axle.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

HALF_LENGTH_M = 2.5
LOOK_AHEAD_S = 0.5
NEAREST_M, FARTHEST_M = 3.0, 25.0
MOST_STEERING = np.pi / 4
MOST_ACCELERATION = 6.0  # m/s2, as far as highway-env's own drivers go
SPEED_FROM_S = 1.5
"""So much of a plan says how fast to be."""


def follow(
    plan: np.ndarray,
    speed: float,
    waypoint_s: float,
    lane: Callable[[float], np.ndarray] | None = None,
) -> tuple[float, float]:
    """Steering angle and acceleration for a plan (waypoints x 2, in the vehicle's frame).

    `lane` gives the point of the lane so far ahead, where the plan means to stay in it: then only
    the speed is the plan's. Who is unsure how fast a bend will be driven expects to be inside of
    it, as the middle of points on an arc is."""
    path = np.concatenate([np.zeros((1, 2)), plan])
    lengths = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(path, axis=0), axis=1))])
    acceleration = _accelerate(lengths, speed, waypoint_s)
    reach = float(np.clip(LOOK_AHEAD_S * speed, NEAREST_M, FARTHEST_M))
    if lane is not None:
        return _steer_to(lane(reach)), acceleration
    if lengths[-1] < 1.0:  # standing: whichever way the last centimetres point means nothing
        return 0.0, acceleration
    reach = min(reach, float(lengths[-1]))
    point = np.array([np.interp(reach, lengths, path[:, axis]) for axis in (0, 1)])
    return _steer_to(point), acceleration


def _steer_to(point: np.ndarray) -> float:
    curvature = 2 * point[1] / max(float(point @ point), 1e-6)
    slip = np.arcsin(np.clip(HALF_LENGTH_M * curvature, -0.99, 0.99))
    return float(np.clip(np.arctan(2 * np.tan(slip)), -MOST_STEERING, MOST_STEERING))


def _accelerate(lengths: np.ndarray, speed: float, waypoint_s: float) -> float:
    """What covers the plan's first metres in the plan's time, by least squares over the waypoints
    of s = v t + a t^2 / 2."""
    count = max(1, round(SPEED_FROM_S / waypoint_s))
    times = waypoint_s * np.arange(1, count + 1)
    half_squares = times**2 / 2
    gaps = lengths[1 : count + 1] - speed * times
    wanted = float((gaps * half_squares).sum() / (half_squares**2).sum())
    # A plan has no way to go back: a vehicle that stands stays where it is.
    slowest = -speed * 5.0
    return float(np.clip(wanted, max(-MOST_ACCELERATION, slowest), MOST_ACCELERATION))


def constant_velocity(speed: float, waypoints: int, waypoint_s: float) -> np.ndarray:
    """The plan of who neither steers nor brakes."""
    times = waypoint_s * np.arange(1, waypoints + 1)
    return np.stack([speed * times, np.zeros(waypoints)], -1)
