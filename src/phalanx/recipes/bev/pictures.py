"""Scenes from above as pictures: roads, vehicles, the way a planner wants to go."""

from __future__ import annotations

import io
from typing import Any, NamedTuple

import numpy as np

from phalanx.recipes.bev.grid import BEHIND_M, CELL_M, CELLS, RoadMap, to_ego, to_world
from phalanx.recipes.bev.world import World

_GROUND, _ROAD, _ROUTE = (226, 230, 222), (176, 178, 182), (198, 204, 216)
_OTHER, _EGO, _HIT = (52, 84, 140), (34, 139, 84), (200, 48, 48)
_PLAN, _DOUBT, _TRUTH = (230, 80, 20), (250, 170, 120), (20, 20, 20)


class View(NamedTuple):
    """What a picture shows around a vehicle that drives to the right."""

    behind_m: float
    ahead_m: float
    beside_m: float
    pixels_per_m: float

    @property
    def size(self) -> tuple[int, int]:
        """Of the picture: width, height."""
        width = (self.ahead_m + self.behind_m) * self.pixels_per_m
        return round(width), round(2 * self.beside_m * self.pixels_per_m)

    def pixels(self, point: np.ndarray) -> tuple[float, float]:
        return (
            float((point[0] + self.behind_m) * self.pixels_per_m),
            float((point[1] + self.beside_m) * self.pixels_per_m),
        )

    def places(self) -> np.ndarray:
        """In the vehicle's frame: height x width x 2."""
        width, height = self.size
        ahead = np.arange(width) / self.pixels_per_m - self.behind_m
        right = np.arange(height) / self.pixels_per_m - self.beside_m
        return np.stack(np.meshgrid(ahead, right, indexing="xy"), -1)


FILM = View(24.0, 72.0, 28.0, 5.0)
GRID = View(BEHIND_M, CELLS[0] * CELL_M[0] - BEHIND_M, CELLS[1] * CELL_M[1] / 2, pixels_per_m=5.0)


def draw_scene(
    world: World, roads: RoadMap, plan: np.ndarray | None, deviation: np.ndarray | None
) -> np.ndarray:
    """A frame of a film: height x width x 3."""
    from PIL import Image, ImageDraw

    frame = world.frames[0]
    pose = frame.ego[:3]
    road, route = roads.sample(to_world(FILM.places(), pose)) > 0
    picture = np.empty((*road.shape, 3), np.uint8)
    picture[:] = _GROUND
    picture[road] = _ROAD
    picture[route] = _ROUTE
    image = Image.fromarray(picture)
    pen = ImageDraw.Draw(image)
    for x, y, heading, _, length, width in frame.others:
        place = np.array([*to_ego(np.array([x, y]), pose), heading - pose[2]])
        pen.polygon(_corners(FILM, place, length, width), fill=_OTHER)
    own = _HIT if world.is_crashed else _EGO
    pen.polygon(_corners(FILM, np.zeros(3), 5.0, 2.0), fill=own)
    if plan is not None:
        _draw_plan(pen, FILM, plan, deviation)
    text = f"{world.scenario.name}  {world.time_s:4.1f} s  {frame.ego[3]:4.1f} m/s"
    pen.text((8, 6), text, fill=_TRUTH)
    return np.asarray(image)


def draw_sample(
    bev: np.ndarray, plan: np.ndarray, deviation: np.ndarray, wanted: np.ndarray
) -> np.ndarray:
    """What was seen in a grid, the plan, and in black where the expert went."""
    from PIL import Image, ImageDraw

    road, route, others = (bev[channel].T[..., None] / 255.0 for channel in range(3))
    picture = np.array(_GROUND) * (1 - road) + np.array(_ROAD) * road
    picture = picture * (1 - route) + np.array(_ROUTE) * route
    picture = picture * (1 - others) + np.array(_OTHER) * others
    image = Image.fromarray(picture.round().astype(np.uint8))
    image = image.resize(GRID.size, Image.Resampling.NEAREST)
    pen = ImageDraw.Draw(image)
    pen.polygon(_corners(GRID, np.zeros(3), 5.0, 2.0), fill=_EGO)
    pen.line([GRID.pixels(point) for point in (np.zeros(2), *wanted)], fill=_TRUTH, width=5)
    _draw_plan(pen, GRID, plan, deviation)
    return np.asarray(image)


def _draw_plan(pen: Any, view: View, plan: np.ndarray, deviation: np.ndarray | None) -> None:
    """Waypoints on a line, each in an ellipse of its deviation."""
    if deviation is not None:
        for point, reach in zip(plan, deviation, strict=True):
            around = [*view.pixels(point - reach), *view.pixels(point + reach)]
            pen.ellipse(around, outline=_DOUBT, width=1)
    line = [view.pixels(point) for point in (np.zeros(2), *plan)]
    pen.line(line, fill=_PLAN, width=2)
    for x, y in line[1:]:
        pen.ellipse([x - 3, y - 3, x + 3, y + 3], fill=_PLAN)


def _corners(
    view: View, pose: np.ndarray, length: float, width: float
) -> list[tuple[float, float]]:
    offsets = np.array([(1, 1), (1, -1), (-1, -1), (-1, 1)]) * (length / 2, width / 2)
    return [view.pixels(point) for point in to_world(offsets, pose)]


def as_png(picture: np.ndarray) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "PNG")
    return buffer.getvalue()
