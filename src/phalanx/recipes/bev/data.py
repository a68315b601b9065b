"""The data of a split, wherever it comes from, and what it says of the shape and the spread."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from phalanx.recipe import Data, Finding, Split, Tensors, cache_folder, write_atomic
from phalanx.recipes.bev import grid, scenarios
from phalanx.recipes.bev.dataset import (
    check_collection,
    collect,
    default_folder,
    is_collection,
    missing_simulator,
    read_arrays,
)
from phalanx.recipes.bev.network import Shape
from phalanx.recipes.bev.options import BevCollecting, BevOptions
from phalanx.recipes.bev.recorded import check_routes, open_routes

_NARROWEST_M = 0.05  # a spread: below, noise would be a matter of millimetres


def sees_grid(options: BevOptions) -> bool:
    """Whether highway-env's grid is what the planner sees. A folder that is not here, where a
    trained planner drives, is taken for a collection."""
    return what_is_seen(options) == "grid"


def what_is_seen(options: BevOptions) -> str:
    """`bev_kind`, found out where it is `auto`."""
    if options.bev_kind != "auto":
        return options.bev_kind
    folder = options.data
    is_grid = folder is None or not folder.is_dir() or is_collection(folder)
    return "grid" if is_grid else "image"


def shape_of(options: BevOptions) -> Shape:
    """What a planner is given and gives; known without any data."""
    known = (scenarios.COMMANDS, len(scenarios.ROUTE_M), scenarios.WAYPOINTS, scenarios.WAYPOINT_S)
    if sees_grid(options):
        return Shape(len(grid.CHANNELS), grid.CELLS, *known, grid.SCALE)
    channels = options.bev_channels * options.history
    unit = 1.0 if options.bev_kind == "feature" else 255.0
    return Shape(channels, options.bev_cells, *known, [(0.0, unit)] * channels)


def describe_inputs(options: BevOptions) -> dict[str, Any]:
    """What a planner is to be given, for who runs it elsewhere."""
    shape = shape_of(options)
    about: dict[str, Any] = {
        "frame": "x ahead, y to the right, metres",
        "bev": {"layout": "channels, ahead, right", "channels": shape.channels},
        "speed": "m/s",
        "command": "CARLA's RoadOption: 1 left, 2 right, 3 straight, 4 follow the lane",
        "route": {"points_ahead_m": list(scenarios.ROUTE_M)},
        "plan": {"waypoints": shape.waypoints, "every_s": shape.waypoint_s},
    }
    if sees_grid(options):
        about["bev"] |= {
            "channels": list(grid.CHANNELS),
            "cells": list(grid.CELLS),
            "cell_m": list(grid.CELL_M),
            "behind_m": grid.BEHIND_M,
        }
    return about


def check_data(options: BevOptions) -> list[Finding]:
    """What stands between a planner and its data."""
    folder = options.data
    if folder is None:
        is_there = is_collection(default_folder(_asked(options)))
        return [] if is_there else missing_simulator()
    if not folder.is_dir():
        return [_no_folder(folder)]
    return check_collection(folder) if is_collection(folder) else check_routes(options)


def _asked(options: BevOptions) -> BevCollecting:
    return BevCollecting(scenarios=options.scenarios, episodes=options.episodes)


def _no_folder(folder: Path) -> Finding:
    return Finding(
        slug="bev-routes",
        what=f"there is no folder `{folder}`",
        why=f"options.data = {folder}",
        fix="data=FOLDER_OF_ROUTES, or without data=: highway-env's experts",
    )


def open_split(split: Split, options: BevOptions) -> Data | None:
    """None: there is nothing to test with."""
    folder = options.data
    if folder is not None and not is_collection(folder):
        return open_routes(split, options)
    if folder is None:
        folder = default_folder(_asked(options))
        if not is_collection(folder):
            collect(_asked(options), None)
    return Tensors(read_arrays(folder, split))


def keep_statistics(data: Any) -> Path:
    """Where the ways of a split lie beside constant velocity, waypoint by waypoint, as a file."""
    from safetensors.numpy import save

    plans, speeds = np.asarray(data.arrays["plan"]), np.asarray(data.arrays["speed"])
    times = scenarios.WAYPOINT_S * np.arange(1, plans.shape[1] + 1)
    beside = plans.astype(np.float64)
    beside[..., 0] -= speeds[:, None].astype(np.float64) * times
    content = save(
        {
            "centre": beside.mean(0).astype(np.float32),
            "spread": np.maximum(beside.std(0), _NARROWEST_M).astype(np.float32),
        }
    )
    name = f"spread-{hashlib.sha256(content).hexdigest()[:16]}.safetensors"
    path = cache_folder("bev") / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content)
    return path
