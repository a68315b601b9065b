"""What can be asked of the bev recipe. Reads neither torch nor a simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from phalanx.recipe import Options

ScenarioName = Literal["highway", "merge", "roundabout", "intersection"]
ALL: tuple[ScenarioName, ...] = ("highway", "merge", "roundabout", "intersection")


class BevCollecting(Options):
    """What `phalanx recipes collect bev` makes."""

    scenarios: list[ScenarioName] = Field(default=list(ALL), min_length=1)
    """highway-env's roads that are driven."""
    episodes: int = Field(default=80, ge=2)
    """Episodes of each scenario to train with; a tenth more, of other seeds, is there to test."""
    seed: int = Field(default=0, ge=0)
    """Of traffic and starts."""
    workers: int = Field(default=0, ge=0)
    """Processes that simulate; 0: one per core."""


class BevOptions(Options):
    """Options of the bev recipe."""

    data: Path | None = None
    """Folder of routes with BEV and measurements, as CARLA's PDM-lite writes them, or one that
    `phalanx recipes collect bev` wrote. Default: highway-env's experts, driven at first use."""
    scenarios: list[ScenarioName] = Field(default=list(ALL), min_length=1)
    """highway-env's roads, where its experts are the data."""
    episodes: int = Field(default=80, ge=2)
    """Episodes of each scenario, where highway-env's experts are the data."""

    bev_kind: Literal["auto", "grid", "image", "feature"] = "auto"
    """What the planner sees: highway-env's grid, or a folder's images of classes or colours, or its
    .npy files of features. `auto`: images, where `data` is a folder of routes."""
    bev_channels: int = Field(default=11, ge=1, le=512)
    """Of a folder's BEV: classes of an image, or channels of a feature."""
    bev_cells: tuple[int, int] = (64, 64)
    """A folder's BEV is brought to this size: ahead, to the right."""
    history: int = Field(default=3, ge=1, le=16)
    """Frames of a folder's BEV that are seen, half a second from one to the next."""
    frames_per_s: float = Field(default=4.0, gt=0)
    """Of a folder's frames; PDM-lite keeps 4 a second."""
    test_share: float = Field(default=0.1, gt=0, lt=1)
    """Of a folder's routes; whole routes are kept for testing."""

    width: int = Field(default=64, ge=16, multiple_of=16)
    """Of tokens."""
    depth: int = Field(default=3, ge=1)
    """Layers."""
    draws: int = Field(default=4, ge=2)
    """Noisy trajectories that are learned from for each look at a scene."""
    steps: int = Field(default=6, ge=1)
    """Of taking noise off, when a plan is made."""
    ways: int = Field(default=8, ge=1)
    """Trajectories that are sampled for a plan, which is the one nearest to all others."""
    uncertainty: float = Field(default=0.05, ge=0)
    """Weight of the waypoints' uncertainty in the loss."""
    pictures: bool = True
    """Draw plans of a few test samples at each evaluation."""

    @field_validator("bev_cells")
    @classmethod
    def _cut_evenly(cls, value: tuple[int, int]) -> tuple[int, int]:
        if any(side < 8 or side % 4 for side in value):
            raise ValueError("each side is a multiple of 4, and 8 at least: patches are 4 cells")
        return value
