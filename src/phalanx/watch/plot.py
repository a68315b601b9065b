"""Curves of characters: eight dots in each, so that a few lines show a shape."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, log10

from phalanx.watch.series import Point

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # Unicode's braille patterns
_EMPTY = 0x2800


def plot(points: Sequence[Point], *, width: int, height: int) -> list[str]:
    """Lines of one curve with its scale on the left: the least and the most of it."""
    if not points:
        return [" " * width] * height
    low, high = min(p.low for p in points), max(p.high for p in points)
    labels = [""] * height
    labels[0], labels[-1] = short_number(high), short_number(low)
    room = max(len(label) for label in labels)
    rows = _dots(points, width - room - 2, height, low, high)
    return [
        f"{label:>{room}} {'┤' if label else '│'}{row}"
        for label, row in zip(labels, rows, strict=True)
    ]


def _dots(points: Sequence[Point], width: int, height: int, low: float, high: float) -> list[str]:
    columns, rows = 2 * width, 4 * height
    first, last = points[0].step, points[-1].step
    cells = [[0] * width for _ in range(height)]
    span, reach = (last - first) or 1.0, (high - low) or 1.0

    def put(x: int, y: int) -> None:
        cells[y // 4][x // 2] |= _DOTS[y % 4][x % 2]

    before: tuple[int, int] | None = None
    for column, value in _by_column(points, columns, first, span):
        y = round((1 - (value - low) / reach) * (rows - 1)) if high > low else rows // 2
        if before is not None:  # what lies between two columns is joined
            x0, y0 = before
            for x in range(x0 + 1, column):
                put(x, round(y0 + (y - y0) * (x - x0) / (column - x0)))
            if column == x0 + 1:
                for between in range(min(y, y0) + 1, max(y, y0)):
                    put(column, between)
        put(column, y)
        before = column, y
    return ["".join(chr(_EMPTY + cell) for cell in row) for row in cells]


def _by_column(
    points: Sequence[Point], columns: int, first: float, span: float
) -> list[tuple[int, float]]:
    """The mean of each column that has points."""
    sums: dict[int, list[float]] = {}
    for point in points:
        column = min(columns - 1, max(0, int((point.step - first) / span * (columns - 1))))
        sums.setdefault(column, []).append(point.value)
    return [(column, sum(sums[column]) / len(sums[column])) for column in sorted(sums)]


def short_number(value: float) -> str:
    """`2.31`, `0.0142`, `3.2e-05`, `12,300`: four figures at most."""
    if not isfinite(value):
        return str(value)
    size = abs(value)
    if size == 0:
        return "0"
    if size >= 1e7 or size < 1e-3:
        return f"{value:.1e}"
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{max(0, 2 - int(log10(size)) if size >= 1 else 3)}f}"
