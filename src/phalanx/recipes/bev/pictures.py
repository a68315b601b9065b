"""Scenes from above as pictures: roads, vehicles, the way a planner wants to go."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from phalanx.recipes.bev.grid import RoadMap, to_ego, to_world
from phalanx.recipes.bev.world import World

_PIXELS_PER_M = 5
_AHEAD_M, _BEHIND_M, _BESIDE_M = 72.0, 24.0, 28.0
_SIZE = (round((_AHEAD_M + _BEHIND_M) * _PIXELS_PER_M), round(2 * _BESIDE_M * _PIXELS_PER_M))
_GROUND, _ROAD, _ROUTE = (226, 230, 222), (176, 178, 182), (198, 204, 216)
_OTHER, _EGO, _HIT = (52, 84, 140), (34, 139, 84), (200, 48, 48)
_PLAN, _DOUBT, _TRUTH = (230, 80, 20), (250, 190, 150), (20, 20, 20)
_LANES = 2.0 / 3.0  # how wide in metres a line of the route's points is drawn


def _pixel_centres() -> np.ndarray:
    ahead = np.arange(_SIZE[0]) / _PIXELS_PER_M - _BEHIND_M
    right = np.arange(_SIZE[1]) / _PIXELS_PER_M - _BESIDE_M
    return np.stack(np.meshgrid(ahead, right, indexing="xy"), -1)


_PIXELS = _pixel_centres()


def draw_scene(
    world: World, roads: RoadMap, plan: np.ndarray | None, deviation: np.ndarray | None
) -> np.ndarray:
    """A frame of a film: height x width x 3, the ego vehicle driving to the right."""
    from PIL import Image, ImageDraw

    frame = world.frames[0]
    pose = frame.ego[:3]
    road, route = roads.sample(to_world(_PIXELS, pose)) > 0
    picture = np.empty((*_PIXELS.shape[:2], 3), np.uint8)
    picture[:] = _GROUND
    picture[road] = _ROAD
    picture[route] = _ROUTE
    image = Image.fromarray(picture)
    pen = ImageDraw.Draw(image)
    for x, y, heading, _, length, width in frame.others:
        place = to_ego(np.array([x, y]), pose)
        pen.polygon(_corners(place, heading - pose[2], length, width), fill=_OTHER)
    pen.polygon(_corners(np.zeros(2), 0.0, 5.0, 2.0), fill=_HIT if world.is_crashed else _EGO)
    if plan is not None:
        draw_plan(pen, plan, deviation)
    text = f"{world.scenario.name}  {world.time_s:4.1f} s  {frame.ego[3]:4.1f} m/s"
    pen.text((8, 6), text, fill=(20, 20, 20))
    return np.asarray(image)


def draw_plan(pen: Any, plan: np.ndarray, deviation: np.ndarray | None) -> None:
    """Waypoints on a line, each in an ellipse of its deviation."""
    if deviation is not None:
        for point, reach in zip(plan, deviation, strict=True):
            low, high = _pixels(point - reach), _pixels(point + reach)
            pen.ellipse([*low, *high], outline=_DOUBT, width=1)
    line = [_pixels(np.zeros(2)), *(_pixels(point) for point in plan)]
    pen.line(line, fill=_PLAN, width=3)
    for x, y in line[1:]:
        pen.ellipse([x - 3, y - 3, x + 3, y + 3], fill=_PLAN)


def _pixels(point: np.ndarray) -> tuple[float, float]:
    return (
        float((point[0] + _BEHIND_M) * _PIXELS_PER_M),
        float((point[1] + _BESIDE_M) * _PIXELS_PER_M),
    )


def _corners(
    place: np.ndarray, heading: float, length: float, width: float
) -> list[tuple[float, float]]:
    pose = np.array([*place, heading])
    offsets = np.array([(1, 1), (1, -1), (-1, -1), (-1, 1)]) * (length / 2, width / 2)
    return [_pixels(point) for point in to_world(offsets, pose)]


def as_png(picture: np.ndarray) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "PNG")
    return buffer.getvalue()
