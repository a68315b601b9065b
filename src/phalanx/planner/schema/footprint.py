"""What the memory of a rank goes to, as far as it is known before anything runs: facts and sums."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from phalanx.errors import format_bytes

WITH_GRADIENTS = "+gradients"
"""Ends the name of a precision whose lines count gradients too, as they come in backward."""

CHANNELS_LAST = "+channels_last"
"""Comes after that, where nothing is turned around for convolutions; only where that differs."""
COMPILED = "+compiled"
"""Comes after the name of a precision, and before that, where the code is compiled."""


class Line(NamedTuple):
    """Bytes of a micro-batch: some that it always takes, and some for each sample."""

    fixed: int
    per_sample: int

    def at(self, samples: int) -> int:
        return self.fixed + self.per_sample * samples


_SAID = {
    "weights": "weights {}",
    "gradients": "gradients {}",
    "optimizer": "optimizer {}",
    "average": "average {}",
    "gathered": "gathered {}",
    "workspaces": "workspaces {}",
    "inputs": "inputs {}",
    "activations": "activations {}",
}


class Parts(NamedTuple):
    """Bytes on one rank."""

    weights: int
    gradients: int
    optimizer: int
    average: int
    gathered: int
    """Weights of other ranks' shards while a block runs, and gradients before they are spread."""
    workspaces: int
    """What the libraries of matrix products ask for once."""
    inputs: int
    """The samples of this step and the next, which is fetched meanwhile."""
    activations: int | None
    """Of one micro-batch at its peak; when a step has only one, what they take beyond the gradients
    that come later. None when they are not known."""

    @property
    def state(self) -> int:
        """What is there whatever the batch."""
        parts = (self.weights, self.gradients, self.optimizer, self.average, self.gathered)
        return sum(parts) + self.workspaces

    @property
    def total(self) -> int:
        return self.state + self.inputs + (self.activations or 0)

    def __str__(self) -> str:
        known = {name: value for name, value in self._asdict().items() if value}
        return " + ".join(_SAID[name].format(format_bytes(known[name])) for name in known)


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
    unreduced_bytes: int = 0
    """Gradients of a block before they are spread, which come while activations go."""
    last_reduced_bytes: int = 0
    """Gradients outside of the blocks, which are spread at the end, when all activations are gone
    and nothing is gathered."""
    input_bytes: int = 0
    """Of one sample."""
    kept: list[Line] | None = None
    """Activations over the samples of a micro-batch: the largest line counts."""
    checkpointed: list[Line] | None = None
    """The same when blocks are recomputed in backward."""
    kept_with_gradients: list[Line] | None = None
    checkpointed_with_gradients: list[Line] | None = None
    """Activations and those gradients that are there at the same time."""
    workspace_bytes: int = 0
    source: str | None = None
    """How activations are known, where a run on tensors without values was not enough."""
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
        is_one_pass: bool = False,
        streams: int = 1,
    ) -> Parts:
        """What the device of one rank holds, which runs `samples` samples in a step; in one pass,
        gradients come while activations go. Workspaces belong to one of `streams` each."""

        def held(part: str, size: int) -> int:
            size = size // shards if part in self.spread else size
            return 0 if part in self.offloaded else size

        gradients = held("gradients", gradient_copies * self.gradient_bytes)
        activations, waiting = self._at_the_peak(
            micro_batch, is_checkpointed, shards, gradients if is_one_pass else None
        )
        return Parts(
            weights=held("weights", self.weight_bytes),
            gradients=gradients,
            optimizer=held("optimizer", self.optimizer_bytes),
            average=held("average", self.average_bytes),
            gathered=self.gathered_bytes + waiting,
            workspaces=streams * self.workspace_bytes,
            inputs=2 * samples * self.input_bytes,
            activations=activations,
        )

    def _at_the_peak(
        self, micro_batch: int, is_checkpointed: bool, shards: int, coming: int | None
    ) -> tuple[int | None, int]:
        """Bytes of activations, and of gradients that wait to be spread; `coming` are gradients
        that are counted elsewhere and are not there when backward begins.

        With A bytes of activations at most and T of activations and whole gradients together, at a
        moment with g bytes of gradients there are at most min(A, T - g) of activations. A rank that
        keeps g / n of them, and u whole until they are spread, has most at g = T - A:
            A + (T - A) / n + min(u, T - A)
        """
        lines = self.checkpointed if is_checkpointed else self.kept
        both = self.checkpointed_with_gradients if is_checkpointed else self.kept_with_gradients
        alone = max(line.at(micro_batch) for line in lines) if lines else None
        later = None
        if alone is not None and both:
            later = max(0, max(line.at(micro_batch) for line in both) - alone)
            if coming is not None:
                alone = max(0, alone + later // shards - coming)
        waiting = self.unreduced_bytes if later is None else min(self.unreduced_bytes, later)
        at_the_end = self.last_reduced_bytes - self.gathered_bytes - (alone or 0)
        return alone, max(waiting, at_the_end)


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
