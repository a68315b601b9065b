"""Lines and a matrix as pictures, drawn by OpenCV: importing a plotting library takes seconds of a
rank for which all others wait."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import cv2
import numpy as np

COLOURS = (
    (244, 133, 66), (55, 68, 219), (0, 180, 244), (88, 157, 15), (188, 71, 171), (0, 109, 230),
    (150, 150, 0), (80, 80, 80),
)  # fmt: skip
"""Blue, green, red."""
_WIDE, _HIGH = 720, 520
_LEFT, _TOP, _RIGHT, _BOTTOM = 60, 20, 20, 50
_NAMED = 12  # lines that have a place in the legend
_CELLS = 30  # classes whose names and counts are written
_BLACK, _GREY, _WHITE = (0, 0, 0), (225, 225, 225), (255, 255, 255)


class Line(NamedTuple):
    """Points with both coordinates from 0 to 1; the last line of a chart is drawn thick."""

    across: np.ndarray
    up: np.ndarray
    name: str


def draw_lines(lines: Sequence[Line], *, across: str, up: str) -> bytes:
    """A chart as PNG."""
    image = np.full((_HIGH, _WIDE, 3), 255, np.uint8)
    width, height = _WIDE - _LEFT - _RIGHT, _HIGH - _TOP - _BOTTOM
    for step in range(6):
        x, y = _LEFT + step * width // 5, _TOP + height - step * height // 5
        cv2.line(image, (x, _TOP), (x, _TOP + height), _GREY, 1)
        cv2.line(image, (_LEFT, y), (_LEFT + width, y), _GREY, 1)
        _write(image, f"{step / 5:.1f}", (x - 12, _TOP + height + 18))
        _write(image, f"{step / 5:.1f}", (_LEFT - 34, y + 5))
    _write(image, across, (_LEFT + width // 2 - 30, _HIGH - 12))
    _write(image, up, (_LEFT + 8, _TOP + 16))
    for number, line in enumerate(lines):
        is_last = number == len(lines) - 1
        colour = _BLACK if is_last else COLOURS[number % len(COLOURS)]
        points = np.stack([_LEFT + width * line.across, _TOP + height * (1 - line.up)], 1)
        corners = [np.round(points).astype(np.int32)]
        cv2.polylines(image, corners, False, colour, 3 if is_last else 1, cv2.LINE_AA)
    named = lines if len(lines) <= _NAMED else lines[-1:]
    for row, line in enumerate(named):
        place = len(lines) - len(named) + row
        colour = _BLACK if place == len(lines) - 1 else COLOURS[place % len(COLOURS)]
        y = _TOP + height - 18 * (len(named) - row)
        cv2.line(image, (_LEFT + 12, y), (_LEFT + 36, y), colour, 2)
        _write(image, line.name, (_LEFT + 42, y + 5))
    return _encode(image)


def draw_matrix(counts: np.ndarray, names: Sequence[str]) -> bytes:
    """Counts in coloured cells, each column by its share, as PNG."""
    size = len(names)
    cell = max(2, min(64, 900 // size))
    is_named = size <= _CELLS
    left = 130 if is_named else 20
    image = np.full((size * cell + left, size * cell + left, 3), 255, np.uint8)
    shares = counts / np.maximum(counts.sum(0, keepdims=True), 1)
    for row, column in np.ndindex(size, size):
        x, y = left + column * cell, row * cell
        share = float(shares[row, column])
        colour = (255 - 60 * share, 255 - 150 * share, 255 - 225 * share)
        cv2.rectangle(image, (x, y), (x + cell - 1, y + cell - 1), colour, -1)
        if is_named and counts[row, column]:
            dark = _WHITE if share > 0.6 else _BLACK
            _write(image, f"{counts[row, column]:.0f}", (x + 4, y + cell // 2 + 5), dark)
    for number, name in enumerate(names if is_named else ()):
        _write(image, name[:14], (4, number * cell + cell // 2 + 5))
        # Below its column, each second one a line lower: names are longer than cells are wide.
        y = size * cell + 18 + 16 * (number % 6)
        _write(image, name[:14], (left + number * cell + 4, y))
    return _encode(image)


def _write(
    image: np.ndarray, text: str, place: tuple[int, int], colour: tuple[int, int, int] = _BLACK
) -> None:
    font = cv2.FONT_HERSHEY_SIMPLEX
    cv2.putText(image, text, place, font, 0.42, colour, 1, cv2.LINE_AA)


def _encode(image: np.ndarray) -> bytes:
    done, content = cv2.imencode(".png", image)
    assert done
    return bytes(content.tobytes())
