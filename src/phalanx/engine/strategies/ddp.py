"""PyTorch's DistributedDataParallel: every rank holds the model, gradients are summed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from phalanx.engine.buffers import SharedBuffers
from phalanx.engine.process import Process
from phalanx.engine.strategies.base import StepSums, Strategy
from phalanx.errors import Finding
from phalanx.job.schema import Ddp as DdpJob
from phalanx.recipe.interface import Recipe

# Forward-changed buffers are combined in after_step. torch 2.13 renamed the argument and warns
# about the old name.
_NO_BUFFER_SYNC: dict[str, Any] = (
    {"forward_sync_buffers": False}
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    else {"broadcast_buffers": False}
)


class Ddp(Strategy):
    """Replicas with summed gradients.

    DDP divides the sum by the number of ranks; the loss is scaled up by it beforehand, which keeps
    torch's own reduction path and gives the gradient of the global batch."""

    name = "ddp"

    def __init__(self, recipe: Recipe, model: nn.Module, process: Process, job: DdpJob) -> None:
        super().__init__(recipe, model, process)
        self._job = job
        self._buffers = SharedBuffers(model, process)

    @property
    def gradient_scale(self) -> float:
        return float(self.process.world)

    def settle(self, micro_batch: Any, run_backward: Callable[[Any], None]) -> list[Finding]:
        """Look for unused parameters, wrap, and settle the order of DDP's buckets.

        DDP orders its buckets anew after the first backward, so a resumed run would add up
        gradients in another order than the unbroken one: two passes before the first step, thrown
        away, put both in the same state. Buffers are put back; randomness is seeded per slot."""
        kept = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        run_backward(micro_batch)
        findings = self._buffers.notice_changes(kept)
        unused = self._unused_parameters()
        self._clear()
        find_unused = self._job.find_unused_parameters
        if find_unused == "auto":
            find_unused = bool(unused)
            if unused:
                findings.append(_unused_finding(unused))
        device = self.process.device
        self.loss_module = DistributedDataParallel(
            self.loss_module,
            device_ids=[device.index] if device.type == "cuda" else None,
            bucket_cap_mb=self._job.bucket_mb,
            find_unused_parameters=find_unused,
            gradient_as_bucket_view=True,
            **_NO_BUFFER_SYNC,
        )
        for _ in range(2):
            run_backward(micro_batch)
        self._clear()
        with torch.no_grad():
            for name, buffer in self.model.named_buffers():
                buffer.copy_(kept[name])
        return findings

    def resume(self) -> None:
        self._buffers.begin()

    def hold_gradients(self) -> AbstractContextManager[Any]:
        assert isinstance(self.loss_module, DistributedDataParallel)
        return self.loss_module.no_sync()

    def contribute_nothing(self) -> None:
        self.loss_module(None, None).backward()

    def after_slot(self, slot: int, sums: StepSums) -> None:
        self._buffers.collect()

    def after_step(self, num_slots: int, sums: StepSums) -> None:
        self._buffers.combine(num_slots)

    def _clear(self) -> None:
        for parameter in self.model.parameters():
            parameter.grad = None

    def _unused_parameters(self) -> list[str]:
        """Trainable parameters that got no gradient on some rank."""
        named = [(n, p) for n, p in self.model.named_parameters() if p.requires_grad]
        is_unused = torch.tensor([float(p.grad is None) for _, p in named])
        dist.all_reduce(is_unused, group=self.process.control)
        counted = list(zip(named, is_unused.tolist(), strict=True))
        # A parameter no rank reaches keeps no gradient, also on a rank that has no micro-batch.
        self.bare_loss.reachable = [p for (_, p), count in counted if count < self.process.world]
        return [name for (name, _), count in counted if count]


def _unused_finding(unused: list[str]) -> Finding:
    shown = ", ".join(unused[:3]) + (f" and {len(unused) - 3} more" if len(unused) > 3 else "")
    return Finding(
        slug="unused-parameters",
        what=f"{len(unused)} parameters get no gradient: {shown}",
        why="a discarded backward pass did not reach them; DDP then searches the graph in every "
        "step (ddp.find_unused_parameters = auto turned that on)",
        fix="freeze them with requires_grad_(False), or use them in the loss",
        severity="warning",
    )
