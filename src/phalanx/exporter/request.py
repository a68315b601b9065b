"""What is to be exported, and what came of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from phalanx.errors import Finding


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is to be written, of which weights."""

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

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Request:
        return replace(cls(**data), file=Path(data["file"]), folder=Path(data["folder"]))

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
class Report:
    """What was written, and how it compares."""

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

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "findings": [finding.to_json() for finding in self.findings]}
