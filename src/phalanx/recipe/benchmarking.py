"""Optional interface: benchmarks in the loop, such as a simulator, for `phalanx evaluate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from phalanx.recipe.optional import OptionalInterface
from phalanx.recipe.showing import Media

if TYPE_CHECKING:
    from torch import nn


class BenchmarkSettings(NamedTuple):
    """What was asked of a closed-loop benchmark; None: the benchmark's own."""

    tasks: int | None
    """So many of its tasks, the first ones."""
    episodes: int | None
    """Roll-outs of each task."""
    max_steps: int | None
    """Steps after which a roll-out ends."""
    horizon: int | None
    """Actions taken of a prediction before the model is asked again."""
    video: bool
    """Whether films are wanted."""
    seed: int
    """Of all that is random in the roll-outs."""
    workers: int
    """Processes that may run roll-outs."""


class TaskResult(NamedTuple):
    """How a model did in one task."""

    task: str
    successes: int
    episodes: int
    figures: Mapping[str, float] = {}
    """What else was measured, such as a driving score."""


class Benchmarked(NamedTuple):
    """How a model did in a benchmark."""

    tasks: Sequence[TaskResult]
    media: Sequence[Media] = ()
    baselines: Mapping[str, Sequence[TaskResult]] = {}
    """How others did in the same tasks, such as an expert: shown below the model in each, and no
    part of its figures."""


class Benchmarking(OptionalInterface):
    """A recipe whose model can be run in the loop."""

    benchmarks: ClassVar[Mapping[str, str]] = {}
    """What `phalanx evaluate --benchmark` offers for this recipe: each name with its meaning."""
    default_benchmark: ClassVar[str | None] = None
    """The one that `phalanx evaluate` runs after the test split where none is named."""

    def benchmark(self, model: nn.Module, name: str, settings: BenchmarkSettings) -> Benchmarked:
        """Run the model in the loop, in one of `benchmarks`. It has its weights and is on its
        device; no data is opened. Raises UserError where something is missing for it."""
        raise NotImplementedError(f"{type(self).__name__}.benchmark is not written")


def default_benchmark(recipe: object) -> str | None:
    """Return the benchmark that a recipe runs where none is named."""
    return recipe.default_benchmark if isinstance(recipe, Benchmarking) else None


def known_benchmarks(recipe: object) -> Mapping[str, str]:
    """Return the benchmarks of a recipe or its class; empty where it has none."""
    if isinstance(recipe, type):
        return recipe.benchmarks if issubclass(recipe, Benchmarking) else {}
    return recipe.benchmarks if isinstance(recipe, Benchmarking) else {}
