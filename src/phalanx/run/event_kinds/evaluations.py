"""What is written of evaluations, on the way and by `phalanx evaluate`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """An evaluation on the way."""

    step: int | None
    """optimizer steps done"""
    epoch: float | None
    """passes over the data done"""
    metrics: dict[str, float]
    """figures over the whole test split"""
    samples: int | None = None
    """samples evaluated over all ranks"""
    is_best: bool
    """whether the deciding metric is the best so far"""
    seconds: float | None = None
    """time taken"""
    source: str | None = None
    """as for `step`"""


@dataclass(frozen=True)
class BenchmarkTask:
    """How a model did in one task of a benchmark."""

    task: str
    successes: int
    episodes: int
    low: float
    """Lower end of the 95 % interval of the success rate."""
    high: float
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        return self.successes / self.episodes if self.episodes else 0.0


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """An evaluation that was asked for with `phalanx evaluate`."""

    file: str
    """the weights, relative to the run directory"""
    step: int | None
    """optimizer steps behind the weights that `phalanx evaluate` looked at, or null"""
    weights: str
    """`raw` or `average`"""
    metrics: dict[str, float]
    """figures over the whole test split, or over all tasks of a benchmark"""
    samples: int | None
    """samples evaluated over all ranks; null for a benchmark"""
    seconds: float
    """time taken"""
    is_same: bool | None
    """whether training recorded the same to the last bit; null: it recorded nothing"""
    benchmark: str | None
    """the benchmark that was run instead of the test split, or null"""
    tasks: list[BenchmarkTask]
    """each of its tasks: successes, episodes, 95 % interval, other figures"""
    baselines: dict[str, list[BenchmarkTask]]
    """by name, how others did in the same tasks, such as an expert"""


@dataclass(frozen=True)
class ModelSample:
    """What the model made of one test sample."""

    given: str
    made: str
    wanted: str


@dataclass(frozen=True, kw_only=True)
class Samples:
    """What the model made of a few test samples."""

    step: int | None = None
    """optimizer steps done; absent in the ranks of `phalanx evaluate`"""
    samples: list[ModelSample]
    """what the model made of a few test samples: given, made, wanted"""


@dataclass(frozen=True, kw_only=True)
class MediaWritten:
    """A picture or a film is on disk."""

    step: int | None = None
    """as for `samples`"""
    name: str
    """what it shows, as the recipe calls it"""
    file: str
    """a picture (.png, .jpg) or a film (.mp4), relative to the run directory"""
    caption: str
    """a line about it, or nothing"""
