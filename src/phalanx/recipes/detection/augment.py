"""Training images as Ultralytics makes them, with all that is random drawn from the sample's key.

choose tiles (one image, or four) -> place and scale them -> blend with another -> colours -> flips

Without rotation, shear and perspective only the part of the canvas that is seen is put together,
and scaled by `resize`, which takes a core less than `warpAffine` and is as exact, because the place
is drawn so that it begins at a whole pixel of the canvas (benchmarks/detection/loading.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import cv2
import numpy as np

from phalanx.recipes.detection.options import DetectionOptions

GREY = 114
_AREA_LEFT, _SIDE_LEFT, _MOST_NARROW = 0.1, 2, 100  # of a box that is still one, as Ultralytics


class Loaded(NamedTuple):
    """An image with its longer side at the training size, and its boxes in pixels."""

    image: np.ndarray
    """BGR, uint8."""
    rows: np.ndarray
    """class, left, top, right, bottom."""


class Tile(NamedTuple):
    """An image on the canvas, and the part of the canvas where it is seen."""

    loaded: Loaded
    x: int
    y: int
    left: int
    top: int
    right: int
    bottom: int


class Augmenter:
    """Makes training images of one size."""

    def __init__(
        self, options: DetectionOptions, *, load: Callable[[int], Loaded], count: int, size: int
    ) -> None:
        self._options = options
        self._load = load
        self._count = count
        self._size = size

    def make(self, index: int, rng: np.random.Generator, *, is_open: bool) -> Loaded:
        """A square image in RGB with its boxes; `is_open`: mosaic and mixup may be used."""
        options = self._options
        image, rows = self._arrange(index, rng, is_open=is_open)
        if is_open and rng.random() < options.mixup:
            other = int(rng.integers(self._count))
            second, more = self._arrange(other, rng, is_open=True)
            share = float(rng.beta(32.0, 32.0))
            image = cv2.addWeighted(image, share, second, 1 - share, 0)
            rows = np.concatenate([rows, more])
        image = _change_colours(image, rng, options)
        if rng.random() < options.flipud:
            image, rows = cv2.flip(image, 0), _mirror(rows, 2, 4, self._size)
        if rng.random() < options.fliplr:
            image, rows = cv2.flip(image, 1), _mirror(rows, 1, 3, self._size)
        return Loaded(image, rows)

    def _arrange(
        self, index: int, rng: np.random.Generator, *, is_open: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        is_mosaic = is_open and rng.random() < self._options.mosaic
        tiles, width, height = self._mosaic(index, rng) if is_mosaic else self._alone(index)
        matrix, scale = self._draw_matrix(rng, width, height)
        is_straight = matrix[0, 1] == matrix[1, 0] == matrix[2, 0] == matrix[2, 1] == 0
        if is_straight:
            matrix, left, top = _from_whole_pixels(matrix)
        rows = np.concatenate([_moved(tile) for tile in tiles])
        if is_mosaic:
            rows[:, 1:] = rows[:, 1:].clip(0, 2 * self._size)
            rows = rows[(rows[:, 3] > rows[:, 1]) & (rows[:, 4] > rows[:, 2])]
        rows = _transform(rows, matrix, scale, self._size)
        if is_straight:
            return _place_straight(tiles, left, top, scale, self._size), rows
        return _place_by_canvas(tiles, matrix, width, height, self._size), rows

    def _alone(self, index: int) -> tuple[list[Tile], int, int]:
        loaded = self._load(index)
        height, width = loaded.image.shape[:2]
        return [Tile(loaded, 0, 0, 0, 0, width, height)], width, height

    def _mosaic(self, index: int, rng: np.random.Generator) -> tuple[list[Tile], int, int]:
        """Four images around a point near the middle of a canvas of twice the side."""
        size = self._size
        partners = rng.integers(self._count, size=3).tolist()
        x, y = (int(v) for v in rng.uniform(size // 2, 2 * size - size // 2, 2))
        tiles = []
        for corner, member in enumerate((index, *partners)):
            loaded = self._load(member)
            height, width = loaded.image.shape[:2]
            left = x - width if corner in (0, 2) else x
            top = y - height if corner in (0, 1) else y
            tiles.append(
                Tile(
                    loaded,
                    left,
                    top,
                    max(left, 0),
                    max(top, 0),
                    min(left + width, 2 * size),
                    min(top + height, 2 * size),
                )
            )
        return tiles, 2 * size, 2 * size

    def _draw_matrix(
        self, rng: np.random.Generator, width: int, height: int
    ) -> tuple[np.ndarray, float]:
        """From places on the canvas to places in the result: Ultralytics' RandomPerspective."""
        options, size = self._options, self._size
        centre, tilt, turn, shear, shift = (np.eye(3) for _ in range(5))
        centre[0, 2], centre[1, 2] = -width / 2, -height / 2
        tilt[2, :2] = rng.uniform(-options.perspective, options.perspective, 2)
        angle = math.radians(float(rng.uniform(-options.degrees, options.degrees)))
        scale = float(rng.uniform(1 - options.scale, 1 + options.scale))
        cos, sin = scale * math.cos(angle), scale * math.sin(angle)
        turn[:2, :2] = [[cos, sin], [-sin, cos]]
        slant = np.tan(np.radians(rng.uniform(-options.shear, options.shear, 2)))
        shear[0, 1], shear[1, 0] = slant
        low, high = 0.5 - options.translate, 0.5 + options.translate
        shift[:2, 2] = rng.uniform(low, high, 2) * size
        return shift @ shear @ turn @ tilt @ centre, scale


def _moved(tile: Tile) -> np.ndarray:
    return tile.loaded.rows + np.array([0, tile.x, tile.y, tile.x, tile.y], np.float32)


def _from_whole_pixels(matrix: np.ndarray) -> tuple[np.ndarray, int, int]:
    """The matrix moved by half a pixel of the canvas at most, and the pixel of the canvas where the
    result begins. `resize` goes by the edges of pixels, not by their centres:
    result + 0.5 = scale (place - begin + 0.5)."""
    moved, begins = matrix.copy(), []
    for axis in (0, 1):
        scale, shift = matrix[axis, axis], matrix[axis, 2]
        begin = round(0.5 - (shift + 0.5) / scale)
        moved[axis, 2] = scale * (0.5 - begin) - 0.5
        begins.append(begin)
    return moved, begins[0], begins[1]


def _place_straight(tiles: list[Tile], left: int, top: int, scale: float, size: int) -> np.ndarray:
    """What is seen of the canvas from (left, top) on, scaled."""
    side = math.ceil(size / scale)
    seen = np.full((side, side, 3), GREY, np.uint8)
    for tile in tiles:
        x, right = max(tile.left, left), min(tile.right, left + side)
        y, bottom = max(tile.top, top), min(tile.bottom, top + side)
        if x < right and y < bottom:
            seen[y - top : bottom - top, x - left : right - left] = tile.loaded.image[
                y - tile.y : bottom - tile.y, x - tile.x : right - tile.x
            ]
    # By factors: with the size of the result the scale would be a rounded one.
    return np.asarray(cv2.resize(seen, None, fx=scale, fy=scale))[:size, :size]


def _place_by_canvas(
    tiles: list[Tile], matrix: np.ndarray, width: int, height: int, size: int
) -> np.ndarray:
    canvas = np.full((height, width, 3), GREY, np.uint8)
    for tile in tiles:
        canvas[tile.top : tile.bottom, tile.left : tile.right] = tile.loaded.image[
            tile.top - tile.y : tile.bottom - tile.y, tile.left - tile.x : tile.right - tile.x
        ]
    border = (GREY, GREY, GREY)
    if matrix[2, 0] or matrix[2, 1]:
        return np.asarray(cv2.warpPerspective(canvas, matrix, (size, size), borderValue=border))
    return np.asarray(cv2.warpAffine(canvas, matrix[:2], (size, size), borderValue=border))


def _transform(rows: np.ndarray, matrix: np.ndarray, scale: float, size: int) -> np.ndarray:
    """Boxes around the corners where they went, without those of which too little is left."""
    corners = rows[:, [1, 2, 3, 4, 1, 4, 3, 2]].reshape(-1, 4, 2).astype(np.float64)
    moved = corners @ matrix[:2, :2].T + matrix[:2, 2]
    depth = corners @ matrix[2, :2].T + matrix[2, 2]
    moved = moved / depth[..., None]
    low, high = moved.min(1).clip(0, size), moved.max(1).clip(0, size)
    width, height = (high - low).T
    before = (rows[:, 3] - rows[:, 1]) * (rows[:, 4] - rows[:, 2]) * scale * scale
    longer = np.maximum(width / (height + 1e-16), height / (width + 1e-16))
    kept = (
        (width > _SIDE_LEFT)
        & (height > _SIDE_LEFT)
        & (width * height / (before + 1e-16) > _AREA_LEFT)
        & (longer < _MOST_NARROW)
    )
    return np.asarray(np.concatenate([rows[:, :1], low, high], 1)[kept], dtype=np.float32)


def _change_colours(
    image: np.ndarray, rng: np.random.Generator, options: DetectionOptions
) -> np.ndarray:
    """Hue, saturation and brightness moved; BGR comes in, RGB goes out."""
    largest = (options.hsv_h, options.hsv_s, options.hsv_v)
    if not any(largest):
        return np.asarray(cv2.cvtColor(image, cv2.COLOR_BGR2RGB))
    hue, saturation, value = rng.uniform(-1, 1, 3) * largest
    levels = np.arange(256, dtype=np.float64)
    table = np.stack(
        [
            (levels + hue * 180) % 180,
            np.clip(levels * (saturation + 1), 0, 255),
            np.clip(levels * (value + 1), 0, 255),
        ],
        -1,
    ).astype(np.uint8)
    table[0, 1] = 0  # white stays white
    changed = cv2.LUT(cv2.cvtColor(image, cv2.COLOR_BGR2HSV), table[None])
    return np.asarray(cv2.cvtColor(changed, cv2.COLOR_HSV2RGB))


def _mirror(rows: np.ndarray, low: int, high: int, size: int) -> np.ndarray:
    rows = rows.copy()
    rows[:, low], rows[:, high] = size - rows[:, high], size - rows[:, low]
    return rows
