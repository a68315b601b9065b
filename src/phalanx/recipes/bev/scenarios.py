"""The roads that are driven in highway-env, and how often, how far and how long one looks.

Frames are highway-env's and CARLA's: x ahead, y to the right. Imports no simulator.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SIMULATED_HZ = 10
PLANNED_HZ = 5
"""How often the world is looked at and a plan is made."""
HISTORY_S = (0.0, 0.4, 0.8)
"""Ages of what a planner sees."""
HORIZON_S = 4.0
WAYPOINTS = 8
WAYPOINT_S = HORIZON_S / WAYPOINTS
ROUTE_M = (4.0, 8.0, 12.0, 18.0, 26.0, 36.0, 50.0, 70.0)
"""How far ahead the points of the route are that a planner is given."""
LEFT, RIGHT, STRAIGHT, FOLLOW, CHANGE_LEFT, CHANGE_RIGHT = range(1, 7)
"""CARLA's RoadOption."""
COMMANDS = 7
"""CARLA's commands count from 1; 0 is none."""


@dataclass(frozen=True)
class Scenario:
    """A kind of road with traffic on it."""

    name: str
    environment: str
    """Class of highway-env."""
    config: dict[str, Any]
    routes: dict[str, int]
    """Where to, each with the command that says so."""
    roads: Callable[[str], list[tuple[str, str]]]
    """The roads to such a destination."""
    start_m: tuple[float, float]
    """Shifts of the ego vehicle's start along its lane."""
    speeds: tuple[float, float]
    """Its speeds at the start."""
    cruise: tuple[float, float]
    """Speeds that its expert would like."""
    length_m: float | None
    """Of the route; None: to `beyond_m` on the last road."""
    beyond_m: float = 0.0
    duration_s: float = 25.0
    expert: str = "Expert"
    traffic: str = "Traffic"
    line: tuple[str, str, float] | None = None
    """Where its expert waits for others: so far before the end of a road."""


def _ring(destination: str) -> list[tuple[str, str]]:
    nodes = ["ser", "ses", "se", "ex", "ee", "nx", "ne", "wx"]  # codespell:ignore ser
    leaves = nodes.index(f"{destination}x")
    path = [*nodes[: leaves + 1], f"{destination}xs", f"{destination}xr"]
    return list(itertools.pairwise(path))


def _crossing(destination: str) -> list[tuple[str, str]]:
    return [("o0", "ir0"), ("ir0", f"il{destination}"), (f"il{destination}", f"o{destination}")]


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "highway",
            "HighwayEnv",
            {"lanes_count": 3, "vehicles_count": 10, "ego_spacing": 1.0, "vehicles_density": 1.2},
            {"1": FOLLOW},
            lambda destination: [("0", "1")],
            start_m=(-10.0, 10.0),
            speeds=(20.0, 30.0),
            cruise=(26.0, 30.0),
            length_m=300.0,
        ),
        Scenario(
            "merge",
            "MergeEnv",
            {},
            {"d": FOLLOW},
            lambda destination: [("a", "b"), ("b", "c"), ("c", "d")],
            start_m=(-15.0, 15.0),
            speeds=(22.0, 30.0),
            cruise=(26.0, 30.0),
            length_m=340.0,
        ),
        Scenario(
            "roundabout",
            "RoundaboutEnv",
            {},
            {"e": RIGHT, "n": STRAIGHT, "w": LEFT},
            _ring,
            start_m=(-30.0, -6.0),
            speeds=(6.0, 12.0),
            cruise=(9.0, 12.0),
            length_m=None,
            beyond_m=10.0,
            line=("ses", "se", 6.0),
        ),
        Scenario(
            "intersection",
            "IntersectionEnv",
            {"initial_vehicle_count": 6, "spawn_probability": 0.2 / PLANNED_HZ},
            {"1": LEFT, "2": STRAIGHT, "3": RIGHT},
            _crossing,
            start_m=(-10.0, 10.0),
            speeds=(6.0, 10.0),
            cruise=(9.0, 10.0),
            length_m=None,
            beyond_m=25.0,
            duration_s=30.0,  # who has no priority may have to wait
            line=("o0", "ir0", 0.5),
            expert="CrossingExpert",
            traffic="CrossingTraffic",
        ),
    )
}
