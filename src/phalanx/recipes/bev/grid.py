"""What a planner sees of a world: a grid from above, in the frame of its vehicle, drawn with numpy.

Channels: the road, the roads of the route, where others are now and were at each age of HISTORY_S,
and their speeds ahead and to the right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from phalanx.recipes.bev.scenarios import HISTORY_S
from phalanx.recipes.bev.world import Frame, World

CELLS = (48, 32)
"""Ahead, to the right."""
CELL_M = (2.0, 1.5)
BEHIND_M = 16.0
CHANNELS = ("road", "route", *(f"others {age:g} s ago" for age in HISTORY_S), "ahead", "right")
SPEED_UNIT = 0.25
"""Metres per second in a step of a speed channel, which is 128 for standing still."""
_STANDING = 128
SCALE = [(0.0, 255.0)] * (len(CHANNELS) - 2) + [(float(_STANDING), 20 / SPEED_UNIT)] * 2
"""For each channel what is taken off it, and what then divides it, to be about 1."""
_MAP_M = 0.5  # of a pixel
_LONGEST_M = 1500.0  # of a highway that would go on for 10 km


def _centres() -> np.ndarray:
    ahead = (np.arange(CELLS[0]) + 0.5) * CELL_M[0] - BEHIND_M
    right = (np.arange(CELLS[1]) + 0.5 - CELLS[1] / 2) * CELL_M[1]
    return np.stack(np.meshgrid(ahead, right, indexing="ij"), -1)


_CENTRES = _centres()
_QUARTERS = np.array([(-0.25, -0.25), (-0.25, 0.25), (0.25, -0.25), (0.25, 0.25)]) * CELL_M


@dataclass(frozen=True)
class RoadMap:
    """Roads as a picture in the world's frame, drawn once."""

    origin: np.ndarray
    layers: np.ndarray
    """road and route, by x and y, 0 or 255."""

    def sample(self, points: np.ndarray) -> np.ndarray:
        """The layers at some points."""
        pixels = ((points - self.origin) / _MAP_M).astype(np.int64)
        last = np.array(self.layers.shape[1:]) - 1
        is_inside = ((pixels >= 0) & (pixels <= last)).all(-1)
        pixels = pixels.clip(0, last)
        return np.asarray(self.layers[:, pixels[..., 0], pixels[..., 1]] * is_inside)


def road_map(world: World) -> RoadMap:
    """The map of a world; roads are the same in every episode of a scenario."""
    return _MAPS.setdefault((world.scenario.name, world.destination), None) or _draw_map(world)


_MAPS: dict[tuple[str, str], RoadMap | None] = {}


def _draw_map(world: World) -> RoadMap:
    lanes = {
        (start, end, index): lane
        for start, ends in world.network.graph.items()
        for end, several in ends.items()
        for index, lane in enumerate(several)
    }
    surfaces = {key: _surface(lane) for key, lane in lanes.items()}
    everything = np.concatenate(list(surfaces.values()))
    origin = everything.min(0) - _MAP_M
    size = ((everything.max(0) - origin) / _MAP_M).astype(np.int64) + 2
    layers = np.zeros((2, *size), np.uint8)
    for (start, end, _), points in surfaces.items():
        pixels = ((points - origin) / _MAP_M).astype(np.int64)
        layers[0, pixels[:, 0], pixels[:, 1]] = 255
        if (start, end) in world.roads and not lanes[start, end, _].forbidden:
            layers[1, pixels[:, 0], pixels[:, 1]] = 255
    drawn = RoadMap(origin, layers)
    _MAPS[world.scenario.name, world.destination] = drawn
    return drawn


def _surface(lane: Any) -> np.ndarray:
    """Points all over a lane, nearer to each other than pixels."""
    along = np.arange(0.0, min(lane.length, _LONGEST_M), _MAP_M / 2)
    middles = np.array([lane.position(s, 0.0) for s in along])
    headings = np.array([lane.heading_at(s) for s in along])
    normals = np.stack([-np.sin(headings), np.cos(headings)], -1)
    half = lane.width_at(0.0) / 2
    across = np.arange(-half, half + 1e-6, _MAP_M / 2)
    return np.asarray(middles[:, None] + across[None, :, None] * normals[:, None]).reshape(-1, 2)


def to_world(points: np.ndarray, pose: np.ndarray) -> np.ndarray:
    """From the frame of a vehicle at (x, y, heading) to the world's."""
    return np.asarray(points @ _turn(pose[2]).T + pose[:2])


def to_ego(points: np.ndarray, pose: np.ndarray) -> np.ndarray:
    """From the world's frame to that of a vehicle at (x, y, heading)."""
    return np.asarray((points - pose[:2]) @ _turn(pose[2]))


def _turn(angle: float) -> np.ndarray:
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def draw(roads: RoadMap, frames: list[Frame], pose: np.ndarray) -> np.ndarray:
    """The grid around a pose, from frames of HISTORY_S ages: uint8, channels x ahead x right."""
    grid = np.zeros((len(CHANNELS), *CELLS), np.uint8)
    quarters = to_world(_CENTRES[:, :, None] + _QUARTERS, pose)
    grid[:2] = roads.sample(quarters).astype(np.uint16).sum(-1) // len(_QUARTERS)
    for age, frame in enumerate(frames):
        cover = _cover(frame.others, pose)
        grid[2 + age] = np.round(255 * cover.max(0, initial=0.0))
        if age == 0:
            grid[-2:] = _speeds(cover, frame.others, pose)
    return grid


def _cover(others: np.ndarray, pose: np.ndarray) -> np.ndarray:
    """How much of each cell each vehicle covers, as far as its own axes and the cells' agree."""
    if not len(others):
        return np.zeros((0, *CELLS))
    places = to_ego(others[:, :2], pose)
    headings = others[:, 2] - pose[2]
    cosines, sines = np.cos(headings), np.sin(headings)
    offsets = _CENTRES[None] - places[:, None, None]
    ahead = offsets[..., 0] * cosines[:, None, None] + offsets[..., 1] * sines[:, None, None]
    right = offsets[..., 1] * cosines[:, None, None] - offsets[..., 0] * sines[:, None, None]
    cells_ahead = np.abs(cosines) * CELL_M[0] + np.abs(sines) * CELL_M[1]
    cells_right = np.abs(sines) * CELL_M[0] + np.abs(cosines) * CELL_M[1]
    length, width = others[:, 4], others[:, 5]
    covered = _overlap(ahead, length, cells_ahead) * _overlap(right, width, cells_right)
    return np.asarray(covered)


def _overlap(offset: np.ndarray, size: np.ndarray, cell: np.ndarray) -> np.ndarray:
    """The share of a cell that lies within an interval around 0."""
    reach = ((size + cell) / 2)[:, None, None] - np.abs(offset)
    most = np.minimum(size, cell)
    return np.asarray(np.clip(reach, 0, most[:, None, None]) / cell[:, None, None])


def _speeds(cover: np.ndarray, others: np.ndarray, pose: np.ndarray) -> np.ndarray:
    if not len(others):
        return np.full((2, *CELLS), _STANDING, np.uint8)
    headings = others[:, 2] - pose[2]
    speeds = others[:, 3] * np.stack([np.cos(headings), np.sin(headings)])
    whose = cover.argmax(0)
    shown = np.where(cover.max(0) > 0, speeds[:, whose], 0.0)
    return np.asarray(np.clip(np.round(shown / SPEED_UNIT) + _STANDING, 0, 255)).astype(np.uint8)
