"""Buffers that forward changes, made the same on every rank: BatchNorm statistics above all.

The statistics of each slot are gathered and folded in slot order, which is what one rank running
all the slots would do. With `sync_batchnorm` the slots that run at the same time have one and the
same statistics, which are folded once. Other buffers that forward changes have no such rule: they
are averaged over the ranks, and a Finding says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from phalanx.engine.process.group import Process
from phalanx.errors import Finding
from phalanx.planner.schema.micro_batches import deal


@contextmanager
def untouched(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Inside, the model's forward may run and be thrown away; gives what its buffers were, and will
    be."""
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        yield before
    finally:
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(before[name])


class SharedBuffers:
    """Collects what each slot's forward did to the buffers of one rank's replica."""

    def __init__(self, model: nn.Module, process: Process) -> None:
        self._process = process
        self._norms = [m for m in model.modules() if _keeps_statistics(m)]
        self._momenta = [norm.momentum for norm in self._norms]
        self._norm_names = statistics_names(model)
        self._model = model
        self._others: list[Tensor] = []
        self._running: Tensor | None = None
        self._batches = 0
        self._rows: list[Tensor] = []
        self.is_synced = False
        """Whether the norms take their statistics over all ranks, so that the micro-batches of a
        round leave one row, the same on every rank, and not one each."""

    def untouched(self) -> AbstractContextManager[dict[str, Tensor]]:
        """Inside, forward may run and be thrown away; gives what the buffers were, and will be."""
        return untouched(self._model)

    def notice_changes(self, before: dict[str, Tensor]) -> list[Finding]:
        """Find buffers other than BatchNorm's that a forward changed, on any rank."""
        names = [name for name in before if name not in self._norm_names]
        if not names:
            return []
        now = dict(self._model.named_buffers())
        counts = self._process.count(not torch.equal(before[n], now[n]) for n in names)
        others = [name for name, count in zip(names, counts, strict=True) if count]
        self._others = [now[name] for name in others]
        if not others:
            return []
        return [
            Finding(
                slug="buffers-averaged",
                what=f"forward changes {len(others)} buffers that are not BatchNorm's: "
                f"{', '.join(others[:3])}",
                why="no rule says how changes of several micro-batches combine; they are averaged "
                "over the ranks after each step, so another number of ranks differs slightly",
                fix="nothing, if an average is right; otherwise make them parameters of the loss",
                severity="warning",
            )
        ]

    def begin(self) -> None:
        """Take over the running statistics. With momentum 1 a forward leaves the slot's own
        statistics in the buffers, from which `combine` does the averaging."""
        if not self._norms:
            return
        self._running = self._read()
        tracked = self._norms[0].num_batches_tracked
        self._batches = int(tracked.item()) if tracked is not None else 0
        for norm in self._norms:
            norm.momentum = 1.0

    def take_back(self) -> None:
        """Go on from the statistics in the buffers: those of a step were put back."""
        if self._norms and self._running is not None:
            self._running = self._read()

    def collect(self) -> None:
        """Keep the statistics of the slot that just ran."""
        if self._norms:
            self._rows.append(self._read())

    def combine(self, num_slots: int) -> None:
        """Fold the statistics of every slot of the step, in slot order, on every rank."""
        if self._norms:
            for row in self._gather(num_slots):
                self._fold(row)
            self._write()
            self._rows.clear()
        for buffer in self._others:
            if buffer.is_floating_point():
                self._process.sum_(buffer).div_(self._process.world)
            elif self._process.world > 1:
                dist.all_reduce(buffer, op=dist.ReduceOp.MAX)

    def _gather(self, num_slots: int) -> list[Tensor]:
        assert self._running is not None
        world = self._process.world
        if world == 1:
            return self._rows
        most = deal(num_slots, 0, world)[1]  # the first rank has the most slots
        mine = self._running.new_zeros(most, len(self._running))
        for index, row in enumerate(self._rows):
            mine[index] = row
        if self.is_synced:
            dist.broadcast(mine, src=0)  # which was there in every round
            return list(mine)
        gathered = [torch.empty_like(mine) for _ in range(world)]
        dist.all_gather(gathered, mine)
        rows: list[Tensor] = []
        for rank in range(world):
            first, last = deal(num_slots, rank, world)
            rows.extend(gathered[rank][: last - first])
        return rows

    def _fold(self, row: Tensor) -> None:
        assert self._running is not None
        self._batches += 1
        position = 0
        for norm, momentum in zip(self._norms, self._momenta, strict=True):
            factor = 1 / self._batches if momentum is None else momentum
            size = 2 * norm.num_features
            part = self._running[position : position + size]
            part.mul_(1 - factor).add_(row[position : position + size], alpha=factor)
            position += size

    def _read(self) -> Tensor:
        parts = [part for norm in self._norms for part in _statistics(norm)]
        dtype = torch.float64 if parts[0].dtype == torch.float64 else torch.float32
        return torch.cat([part.detach().to(dtype) for part in parts])

    def _write(self) -> None:
        assert self._running is not None
        position = 0
        with torch.no_grad():
            for norm in self._norms:
                for part in _statistics(norm):
                    part.copy_(self._running[position : position + len(part)])
                    position += len(part)
                if norm.num_batches_tracked is not None:
                    norm.num_batches_tracked.fill_(self._batches)


def running_statistics(model: nn.Module) -> list[Tensor]:
    """The buffers that hold BatchNorm's running means and variances."""
    return [part for m in model.modules() if _keeps_statistics(m) for part in _statistics(m)]


def statistics_names(model: nn.Module) -> set[str]:
    """Names of the buffers that hold BatchNorm's running statistics."""
    return {
        f"{name}.{part}" if name else part
        for name, module in model.named_modules()
        if _keeps_statistics(module)
        for part in ("running_mean", "running_var", "num_batches_tracked")
    }


def _keeps_statistics(module: nn.Module) -> TypeGuard[_BatchNorm]:
    return isinstance(module, _BatchNorm) and module.running_mean is not None


def _statistics(norm: _BatchNorm) -> tuple[Tensor, Tensor]:
    assert norm.running_mean is not None and norm.running_var is not None
    return norm.running_mean, norm.running_var
