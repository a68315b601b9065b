"""What a user may say about the policy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field

from phalanx.recipe import Options

DEFAULT_TASKS = ("reach-v3", "push-v3", "door-open-v3")
"""Tasks of Meta-World that the default demonstrations are of."""


class Size(NamedTuple):
    """A transformer: its parameters are about 12 x width^2 x depth."""

    width: int
    depth: int
    heads: int
    per_token: int = 1
    """Actions that are one token: a quarter of the tokens takes a third of the time."""


SIZES = {
    "tiny": Size(128, 4, 4, per_token=4),  # 0.9M: what two CPU cores train in minutes
    "6m": Size(256, 8, 8),
    "50m": Size(640, 10, 10),
    "170m": Size(1024, 13, 16),
    "400m": Size(1536, 14, 24),
    "1b": Size(2048, 20, 32),
}


def _listed(value: Any) -> Any:
    """`a,b` on a command line is a list."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


Names = Annotated[list[str], BeforeValidator(_listed)]


class PolicyOptions(Options):
    """Options of the policy recipe."""

    data: Path | None = None
    """A folder of demonstrations (docs/guide/policy.md), an HDF5 file of LIBERO or robomimic, or a
    folder of such files. Default: Meta-World's scripted experts are asked at first use."""
    tasks: Names | None = None
    """Names of the tasks to train. Default: all that the data holds."""
    episodes: int = Field(default=100, ge=2, le=10_000)
    """Demonstrations of each task, where they are collected at first use."""
    test_share: float = Field(default=0.05, gt=0, lt=1)
    """Share of each task's episodes that are kept for the evaluation."""
    state_keys: Names | None = None
    """HDF5: what of `obs` is the robot's state. Default: those of LIBERO or robomimic."""
    cameras: Names = Field(default_factory=list)
    """Names of the data's cameras that the policy sees, one or two. Default: it sees the state."""

    size: Literal["tiny", "6m", "50m", "170m", "400m", "1b"] = "tiny"
    """Parameters of the transformer; tiny is 0.9M, which CPU cores train in minutes."""
    chunk: int = Field(default=16, ge=1, le=256)
    """Actions that are predicted at once."""
    prediction: Literal["v", "epsilon"] = "v"
    """What the network predicts: a velocity between noise and actions, or the noise."""
    solver: Literal["dpm", "ddim"] = "dpm"
    """How actions are sampled: DPM-Solver++ of second order, or DDIM."""
    sampling_steps: int = Field(default=8, ge=1, le=1000)
    """Calls of the network for one prediction."""
    state_noise: float = Field(default=0.02, ge=0, le=1)
    """Noise on the states in training, in standard deviations: the policy learns to go back."""
    statistics: Literal["auto", "task", "dataset"] = "auto"
    """What states and actions are scaled by: each task's own mean and deviation, or those of the
    whole data set. `auto`: each task's own where it has enough steps."""
    sample_batch_size: int = Field(default=256, ge=1, le=65_536)
    """Moments of the held-out episodes at which an evaluation samples actions."""

    text_encoder: str | None = None
    """What embeds the tasks' descriptions: a folder or a name of the hub, of any text model of
    transformers; `none` learns a vector for each task. Default: all-MiniLM-L6-v2."""
    vision_encoder: str | None = None
    """What sees: a folder or a name of the hub, of any vision model of transformers. Default: a
    small convolutional network that learns with the policy."""
    train_vision: bool = False
    """Let the vision model learn. Frozen, it looks at each picture once; what it saw is kept."""
    image_size: int = Field(default=96, ge=32, le=1024)
    """Side of the pictures for the small network; a vision model has its own."""

    state_size: int | None = None
    """Numbers in a state: found in the data."""
    action_size: int | None = None
    """Numbers in an action: found in the data."""
    text_size: int | None = None
    """Numbers in a description's embedding: found with its model."""
    seen_size: int | None = None
    """Numbers in a token of what cameras see: found with its model."""

    @property
    def shape(self) -> Size:
        return SIZES[self.size]


class PolicyCollecting(Options):
    """What `phalanx recipes collect policy` may be told."""

    tasks: Names = Field(default_factory=lambda: list(DEFAULT_TASKS))
    """Tasks of Meta-World, such as reach-v3."""
    episodes: int = Field(default=100, ge=1, le=100_000)
    """Successful demonstrations of each task."""
    cameras: Names = Field(default_factory=list)
    """Cameras of Meta-World to film with: corner, corner2, corner3, topview, behindGripper,
    gripperPOV."""
    image_size: int = Field(default=128, ge=32, le=1024)
    """Side of the pictures in pixels."""
    noise: float = Field(default=0.1, ge=0, le=1)
    """Deviation of the noise on the actions that are carried out; what is learned is what the
    expert wanted. Shows the policy states that it gets into by its own mistakes."""
    max_steps: int = Field(default=200, ge=10, le=500)
    """Steps after which an episode counts as failed, and is left out."""
    seed: int = Field(default=0, ge=0, lt=2**20)
    """Of places and noise. The places of evaluations are never among them."""
    workers: int | None = Field(default=None, ge=1)
    """Processes. Default: one per core."""
