"""What strategies of several ranks have in common: buffers that forward changes."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from phalanx.engine.data.micro_batches import MicroBatch
from phalanx.engine.model.buffers import SharedBuffers
from phalanx.engine.model.sync_batchnorm import BatchStatistics
from phalanx.engine.process.group import Process
from phalanx.engine.strategies.base import RunBackward, StepSums, Strategy
from phalanx.errors import Finding, name_some
from phalanx.recipe.interface import Recipe


class Together(Strategy):
    """Ranks whose BatchNorm statistics and other changing buffers are made the same."""

    def __init__(self, recipe: Recipe, model: nn.Module, process: Process) -> None:
        super().__init__(recipe, model, process)
        self._buffers = SharedBuffers(model, process)

    def synchronise(self, statistics: BatchStatistics) -> None:
        """BatchNorm takes its statistics over all ranks: forward and backward wait for them."""
        self.is_lockstep = True
        self._buffers.is_synced = True
        statistics.is_silent = lambda: self.is_idle

    def settle(self, micro_batch: MicroBatch, run_backward: RunBackward) -> list[Finding]:
        """One pass that is thrown away, to see which buffers forward changes."""
        with self._buffers.untouched() as before:
            run_backward(micro_batch)
            findings = self._buffers.notice_changes(before)
            self.clear_gradients()
        return findings

    def resume(self) -> None:
        super().resume()
        self._buffers.begin()

    def statistics_changed(self) -> None:
        self._buffers.take_back()

    def after_slot(self, slot: int, sums: StepSums) -> None:
        self._buffers.collect()

    def after_step(self, num_slots: int, sums: StepSums) -> None:
        self._buffers.combine(num_slots)


def unused_findings(unused: Iterable[str], consequence: str) -> list[Finding]:
    """Parameters that get no gradient, and what that means under a strategy."""
    names = list(unused)
    if not names:
        return []
    return [
        Finding(
            slug="unused-parameters",
            what=f"{len(names)} parameters get no gradient: {name_some(names)}",
            why=f"a discarded backward pass did not reach them; {consequence}",
            fix="freeze them with requires_grad_(False), or use them in the loss",
            severity="warning",
        )
    ]
