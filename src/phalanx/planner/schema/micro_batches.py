"""How a global batch becomes micro-batches, and who gets which: pure arithmetic.

A step consumes the next `global_batch_size` samples of the epoch (fewer at its end), cut into
slots of at most `micro_batch_size`, as even as can be. Slots are dealt in order: the first ranks
get one more when it does not divide, and a rank may get none. A slot depends on the batch sizes
alone, never on the number of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from math import ceil
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Slot:
    """One micro-batch of one step: samples `start` to `stop` of the epoch's order."""

    index: int
    start: int
    stop: int


class StepShare(NamedTuple):
    """What one rank does in one optimizer step."""

    step: int
    epoch: int
    consumed: int
    """Samples consumed once this step is done, counted from the beginning of the run."""
    slots: tuple[Slot, ...]
    num_slots: int
    """Slots of the step over all ranks."""


@dataclass(frozen=True)
class BatchPlan:
    """The sizes that fix which samples each optimizer step sees."""

    num_samples: int
    global_batch_size: int
    micro_batch_size: int

    @property
    def steps_per_epoch(self) -> int:
        return ceil(self.num_samples / self.global_batch_size)

    @property
    def num_slots(self) -> int:
        """Slots of a full step."""
        return ceil(self.global_batch_size / self.micro_batch_size)

    @property
    def largest_slot(self) -> int:
        """Samples of the largest micro-batch of a run: the last step of an epoch may hold it."""
        return max(
            slot.stop - slot.start
            for step in self._kinds_of_steps()
            for slot in self.slots_of(step)
        )

    def smallest_round(self, ranks: int = 1) -> int:
        """Samples that ranks run at the same time, at the least; of one rank: the smallest
        micro-batch of a run."""
        sizes = []
        for step in self._kinds_of_steps():
            slots = [slot.stop - slot.start for slot in self.slots_of(step)]
            shares = [slots[slice(*deal(len(slots), rank, ranks))] for rank in range(ranks)]
            sizes += [sum(together) for together in zip_longest(*shares, fillvalue=0)]
        return min(sizes)

    def _kinds_of_steps(self) -> tuple[int, int]:
        return 0, self.steps_per_epoch - 1

    def epoch_of(self, step: int) -> float:
        """Passes over the data done after `step` steps."""
        whole, rest = divmod(step, self.steps_per_epoch)
        return whole + min(rest * self.global_batch_size / self.num_samples, 1.0)

    def consumed_after(self, step: int) -> int:
        """Samples consumed after `step` steps: the one global position."""
        whole, rest = divmod(step, self.steps_per_epoch)
        return whole * self.num_samples + min(rest * self.global_batch_size, self.num_samples)

    def slots_of(self, step: int) -> list[Slot]:
        """Every slot of a step, counted from 0."""
        offset = (step % self.steps_per_epoch) * self.global_batch_size
        size = min(self.global_batch_size, self.num_samples - offset)
        return split_evenly(offset, size, self.micro_batch_size)

    def share_of(self, step: int, rank: int, ranks: int) -> StepShare:
        """The slots of a step that a rank runs."""
        slots = self.slots_of(step)
        first, last = deal(len(slots), rank, ranks)
        return StepShare(
            step=step,
            epoch=step // self.steps_per_epoch,
            consumed=self.consumed_after(step + 1),
            slots=tuple(slots[first:last]),
            num_slots=len(slots),
        )


def split_evenly(offset: int, size: int, limit: int) -> list[Slot]:
    """Cut `size` samples into the fewest parts of at most `limit`, none larger by more than 1."""
    parts = ceil(size / limit)
    return [
        Slot(i, offset + i * size // parts, offset + (i + 1) * size // parts) for i in range(parts)
    ]


def deal(count: int, rank: int, ranks: int) -> tuple[int, int]:
    """The contiguous range of `count` things that a rank gets."""
    base, extra = divmod(count, ranks)
    first = rank * base + min(rank, extra)
    return first, first + base + (rank < extra)
