"""Questions about a recipe that a child process with torch answers, and the answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from phalanx.errors import Finding
from phalanx.recipe.benchmarking import BenchmarkSettings, TaskResult


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What every answer has."""

    findings: list[Finding] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class CollectQuestion:
    """Data that a recipe is to make."""

    recipe: str
    settings: dict[str, Any]
    out: Path | None
    """A new folder; None: where the recipe looks for it by itself."""


@dataclass(frozen=True, kw_only=True)
class CollectAnswer(Answer):
    path: Path | None = None
    said: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class BenchmarkQuestion:
    """A trained model that is to run in the loop."""

    recipe: str
    options: dict[str, Any]
    file: Path
    benchmark: str | None
    """None: the one that the recipe names as its usual one."""
    flags: str
    """What was asked of its roll-outs, as options of the command line."""
    settings: BenchmarkSettings
    video: Path | None
    """A folder for films."""
    device: str
    """`auto`, `cpu`, `cuda` or `cuda:N`."""


class Film(NamedTuple):
    """A picture or film that was written."""

    name: str
    path: Path
    caption: str


@dataclass(frozen=True, kw_only=True)
class BenchmarkAnswer(Answer):
    benchmark: str = ""
    tasks: list[TaskResult] = field(default_factory=list)
    baselines: dict[str, list[TaskResult]] = field(default_factory=dict)
    media: list[Film] = field(default_factory=list)
    seconds: float = 0.0
    device: str = ""


@dataclass(frozen=True, kw_only=True)
class ExportQuestion:
    """A file that is to be written for other tools, of which weights."""

    recipe: str
    options: dict[str, Any]
    file: Path
    """The weights: of a checkpoint, their average, or a file by itself."""
    form: str
    folder: Path
    record: dict[str, Any] = field(default_factory=dict)
    """What the files are to say of themselves."""
    is_half: bool = False
    is_int8: bool = False
    is_dynamic: bool = False
    batch: int = 1
    opset: int | None = None

    @property
    def precision(self) -> str:
        return "int8" if self.is_int8 else "fp16" if self.is_half else "fp32"


@dataclass(frozen=True)
class Difference:
    """How far one output is from what PyTorch gives."""

    output: str
    shape: list[int]
    """For the first batch."""
    largest: float
    """The largest difference between two numbers; of whole numbers, how many differ."""
    limit: float | None
    """What it may be; None: it is only told."""
    is_count: bool = False

    @property
    def is_within(self) -> bool:
        return self.limit is None or self.largest <= self.limit


@dataclass
class ExportAnswer:
    """What was written, and how it compares; filled in step by step."""

    findings: list[Finding] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    samples: int = 0
    """Real ones, on which it was compared."""
    batch: int = 0
    torch_ms: float | None = None
    """A batch in PyTorch, in fp32."""
    exported_ms: float | None = None
    device: str = "cpu"
    runtime: str = ""
