"""What the memory of a rank goes to, as far as it is known before anything runs: facts and sums."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from phalanx.errors import format_bytes


class Line(NamedTuple):
    """Bytes of a micro-batch: some that it always takes, and some for each sample."""

    fixed: int
    per_sample: int

    def at(self, samples: int) -> int:
        return self.fixed + self.per_sample * samples


class Parts(NamedTuple):
    """Bytes on one rank."""

    weights: int
    gradients: int
    optimizer: int
    average: int
    gathered: int
    """Weights of other ranks' shards while a block runs, and gradients before they are spread."""
    inputs: int
    """The samples of this step and the next, which is fetched meanwhile."""
    activations: int | None
    """Of one micro-batch at its peak; None when they are not known."""

    @property
    def state(self) -> int:
        """What is there whatever the batch."""
        return self.weights + self.gradients + self.optimizer + self.average + self.gathered

    @property
    def total(self) -> int:
        return self.state + self.inputs + (self.activations or 0)

    def __str__(self) -> str:
        known = ((name, value) for name, value in self._asdict().items() if value)
        return " + ".join(f"{name} {format_bytes(value)}" for name, value in known)


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """What the model takes, and a sample, in the precision and with the optimizer of a plan."""

    weight_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    average_bytes: int
    spread: list[str] = field(default_factory=list)
    """Parts that are spread over the ranks."""
    offloaded: list[str] = field(default_factory=list)
    """Parts that are kept in host memory."""
    gathered_bytes: int = 0
    """What a spread model gathers at once."""
    input_bytes: int = 0
    """Of one sample."""
    kept: list[Line] | None = None
    """Activations over the samples of a micro-batch: the largest line counts."""
    checkpointed: list[Line] | None = None
    """The same when blocks are recomputed in backward."""
    unknown: str | None = None
    """Why activations are not known."""

    def parts(
        self,
        *,
        micro_batch: int,
        samples: int,
        is_checkpointed: bool,
        gradient_copies: int = 1,
        shards: int = 1,
    ) -> Parts:
        """What the device of one rank holds, which runs `samples` samples in a step."""
        lines = self.checkpointed if is_checkpointed else self.kept

        def held(part: str, size: int) -> int:
            size = size // shards if part in self.spread else size
            return 0 if part in self.offloaded else size

        return Parts(
            weights=held("weights", self.weight_bytes),
            gradients=held("gradients", gradient_copies * self.gradient_bytes),
            optimizer=held("optimizer", self.optimizer_bytes),
            average=held("average", self.average_bytes),
            gathered=self.gathered_bytes,
            inputs=2 * samples * self.input_bytes,
            activations=max(line.at(micro_batch) for line in lines) if lines else None,
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Footprint:
        return cls(**{**record, **{k: read_lines(record[k]) for k in ("kept", "checkpointed")}})


def read_lines(record: Any) -> list[Line] | None:
    """Lines as JSON holds them."""
    return None if record is None else [Line(*pair) for pair in record]


def upper_lines(lines: Iterable[Line]) -> list[Line]:
    """The lines that are the largest for some number of samples from 1 on."""
    upper: list[Line] = []
    for line in sorted(lines, key=lambda line: (line.per_sample, line.fixed)):
        # A steeper line hides those that it has passed before they passed their own predecessor.
        while upper and (
            line.at(1) >= upper[-1].at(1)
            or (len(upper) > 1 and _crossing(upper[-2], line) <= _crossing(upper[-2], upper[-1]))
        ):
            upper.pop()
        upper.append(line)
    return upper


def _crossing(flat: Line, steep: Line) -> float:
    """Samples from which on the steeper line is the larger one."""
    return (flat.fixed - steep.fixed) / (steep.per_sample - flat.per_sample)
