"""Recorded routes as data: small arrays in memory, each BEV read when it is asked for."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import torch

from phalanx.recipe import Finding, Split, UserError
from phalanx.recipes.bev.options import BevOptions
from phalanx.recipes.bev.routes import Problem, Route, as_findings, find_routes, plans, read_route

_AGE_S = 0.5  # from one frame of the history to the next
_OPENED = 64  # BEV files that are read as a whole before training


class Recorded:
    """The frames of some routes that have a whole plan after them."""

    def __init__(self, routes: list[Route], options: BevOptions) -> None:
        self._options = options
        ways = [plans(route, options.frames_per_s) for route in routes]
        counts = [len(way) for way in ways]
        firsts = [(route, len(way)) for route, way in zip(routes, ways, strict=True)]

        def joined(name: str) -> np.ndarray:
            return np.concatenate([getattr(route, name)[:count] for route, count in firsts])

        self.arrays = {
            "speed": joined("speeds"),
            "command": joined("commands"),
            "route": joined("ahead"),
            "plan": np.concatenate(ways),
        }
        step = max(1, round(_AGE_S * options.frames_per_s))
        self._bevs: list[list[tuple[Path, int]]] = [
            [(route.bevs[at], at) for at in _ages(index, step, options.history)]
            for route, count in zip(routes, counts, strict=True)
            for index in range(count)
        ]

    def __len__(self) -> int:
        return len(self._bevs)

    def load(self, index: int) -> dict[str, np.ndarray]:
        """One sample, read and decoded."""
        frames = [read_bev(path, at, self._options) for path, at in self._bevs[index]]
        return {
            "bev": np.concatenate(frames),
            **{name: array[index] for name, array in self.arrays.items()},
        }

    def __getitems__(self, ids: np.ndarray, keys: Any) -> dict[str, torch.Tensor]:
        samples = [self.load(int(index)) for index in ids]
        return {
            name: torch.from_numpy(np.stack([sample[name] for sample in samples]))
            for name in samples[0]
        }


def _ages(index: int, step: int, history: int) -> list[int]:
    """Now first; at the beginning of a route, its first frame stands for what was before."""
    return [max(0, index - step * age) for age in range(history)]


def read_bev(path: Path, index: int, options: BevOptions) -> np.ndarray:
    """One frame as the model takes it: channels x ahead x right; raises UserError."""
    problem = None
    try:
        grid = _read_feature(path) if path.suffix == ".npy" else _read_image(path, options)
    except (OSError, ValueError, EOFError, SyntaxError) as error:  # Pillow's of a broken PNG
        problem = Problem("shape", path, index, f"it cannot be read: {error}")
    else:
        problem = _judge(grid, path, index, options)
    if problem is not None:
        raise UserError(as_findings([problem], _root(path, options)))
    return _resize(grid, options.bev_cells)


def _judge(grid: np.ndarray, path: Path, index: int, options: BevOptions) -> Problem | None:
    kind = "feature" if path.suffix == ".npy" else "image"
    wanted = "image" if options.bev_kind == "auto" else options.bev_kind
    if kind != wanted:
        why = f"it is of the kind {kind}; bev_kind = {options.bev_kind}"
        return Problem("shape", path, index, why)
    if grid.ndim != 3 or grid.shape[0] != options.bev_channels:
        why = f"its shape is {list(grid.shape)}; bev_channels = {options.bev_channels}"
        return Problem("shape", path, index, why)
    if any(have < want for have, want in zip(grid.shape[1:], options.bev_cells, strict=True)):
        why = f"its size is {list(grid.shape[1:])}; bev_cells = {list(options.bev_cells)}"
        return Problem("shape", path, index, why)
    if not np.isfinite(grid).all():
        return Problem("not finite", path, index, "not all of it are finite numbers")
    return None


def _read_feature(path: Path) -> np.ndarray:
    return np.asarray(np.load(path, allow_pickle=False), np.float32)


def _read_image(path: Path, options: BevOptions) -> np.ndarray:
    """Classes as one channel each, colours as they are; ahead is up in the image."""
    from PIL import Image

    with Image.open(path) as image:
        pixels = np.asarray(image)
    pixels = pixels[::-1]
    if pixels.ndim == 3:
        return np.ascontiguousarray(pixels.transpose(2, 0, 1))
    highest = int(pixels.max(initial=0))
    if highest >= options.bev_channels:
        raise ValueError(f"class {highest}; bev_channels = {options.bev_channels}")
    classes = np.arange(options.bev_channels)[:, None, None]
    return np.where(pixels[None] == classes, 255, 0).astype(np.uint8)


def _resize(grid: np.ndarray, cells: tuple[int, int]) -> np.ndarray:
    """The means over the part of the picture that each cell covers."""
    if grid.shape[1:] == cells:
        return grid
    values = torch.from_numpy(np.ascontiguousarray(grid)).float()
    small = torch.nn.functional.adaptive_avg_pool2d(values, cells).numpy()
    return small if grid.dtype == np.float32 else np.round(small).astype(np.uint8)


def _root(path: Path, options: BevOptions) -> Path:
    root = options.data
    return root if root is not None and path.is_relative_to(root) else path.parent


@functools.lru_cache(maxsize=4)
def _read_all(folder: Path) -> tuple[tuple[Route, ...], tuple[Finding, ...]]:
    routes, problems = [], []
    for place in find_routes(folder):
        route, wrong = read_route(place)
        problems += wrong
        if route is not None:
            routes.append(route)
    return tuple(routes), tuple(as_findings(problems, folder))


def check_routes(options: BevOptions) -> list[Finding]:
    """All measurements, that every frame has its BEV, and some BEV files from all over."""
    assert options.data is not None
    routes, findings = _read_all(options.data)
    if not routes and not findings:
        return [_nothing(options.data)]
    found = list(findings)
    bevs = [(path, index) for route in routes for index, path in enumerate(route.bevs)]
    for at in np.unique(np.linspace(0, max(0, len(bevs) - 1), _OPENED).astype(int)):
        path, index = bevs[at]
        try:
            read_bev(path, index, options)
        except UserError as error:
            found += error.findings
            break  # the others are most likely the same
    if not found and all(not len(plans(route, options.frames_per_s)) for route in routes):
        found.append(_too_short(routes, options))
    return found


def open_routes(split: Split, options: BevOptions) -> Recorded | None:
    """The routes of a split; None: there are none to test with."""
    assert options.data is not None
    routes, findings = _read_all(options.data)
    if findings or not routes:
        raise UserError(list(findings) or [_nothing(options.data)])
    every = max(2, round(1 / options.test_share))
    chosen = [
        route
        for index, route in enumerate(routes)
        if (len(routes) > 1 and index % every == every - 1) == (split == "test")
    ]
    if split == "test" and len(routes) > 1 and not chosen:
        chosen = [routes[-1]]
    elif split == "train" and 1 < len(routes) < every:
        chosen = chosen[:-1]
    return Recorded(chosen, options) if chosen else None


def _nothing(folder: Path) -> Finding:
    return Finding(
        slug="bev-routes",
        what=f"there are no routes in `{folder}`",
        why="a route is a folder with `measurements/` and `bev_semantics/` or `bev/` in it, and "
        "what `phalanx recipes collect bev` wrote has an `about.json`; neither is there",
        fix="data=FOLDER_OF_ROUTES, or without data=: highway-env's experts",
    )


def _too_short(routes: tuple[Route, ...], options: BevOptions) -> Finding:
    longest = max(len(route) for route in routes)
    return Finding(
        slug="bev-routes",
        what=f"no route is long enough for a plan of 4 s: the longest has {longest} frames",
        why=f"frames_per_s = {options.frames_per_s:g}: a plan takes "
        f"{round(4 * options.frames_per_s)} frames",
        fix="frames_per_s= as the routes were recorded",
    )
