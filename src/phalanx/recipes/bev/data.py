"""The data of a split, wherever it comes from, and what it says of the shape and the spread."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from phalanx.recipe import Data, Split, Tensors, cache_folder, write_atomic
from phalanx.recipes.bev import grid, world
from phalanx.recipes.bev.dataset import collect, default_folder, is_collection, read_arrays
from phalanx.recipes.bev.network import Shape
from phalanx.recipes.bev.options import BevCollecting, BevOptions

_NARROWEST_M = 0.05  # a spread: below, noise would be a matter of millimetres


def is_simulated(options: BevOptions) -> bool:
    """Whether highway-env is what the planner sees."""
    return options.data is None or is_collection(options.data)


def shape_of(options: BevOptions) -> Shape:
    """What a planner is given and gives; known without any data."""
    known = (world.COMMANDS, len(world.ROUTE_M), world.WAYPOINTS, world.WAYPOINT_S)
    scale = [(float(offset), float(unit)) for offset, unit in grid.cell_scale()]
    return Shape(len(grid.CHANNELS), grid.CELLS, *known, scale)


def open_split(split: Split, options: BevOptions) -> Data:
    folder = options.data
    if folder is None:
        asked = BevCollecting(scenarios=options.scenarios, episodes=options.episodes)
        folder = default_folder(asked)
        if not is_collection(folder):
            collect(asked, None)
    return Tensors(read_arrays(folder, split))


def keep_statistics(data: Any) -> Path:
    """Where the ways of a split lie beside constant velocity, waypoint by waypoint, as a file."""
    from safetensors.numpy import save

    plans, speeds = np.asarray(data.arrays["plan"]), np.asarray(data.arrays["speed"])
    times = world.WAYPOINT_S * np.arange(1, plans.shape[1] + 1)
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
