"""PyTorch's DistributedDataParallel: every rank holds the model, gradients are summed."""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from phalanx.engine.data.micro_batches import MicroBatch
from phalanx.engine.process.group import Process
from phalanx.engine.strategies.base import RunBackward
from phalanx.engine.strategies.together import Together, unused_findings
from phalanx.errors import Finding
from phalanx.job.schema import Ddp as DdpJob
from phalanx.job.strategies import facts_of
from phalanx.recipe.interface import Recipe

# Forward-changed buffers are combined in after_step. torch 2.13 renamed the argument and warns
# about the old name.
_NO_BUFFER_SYNC: dict[str, Any] = (
    {"forward_sync_buffers": False}
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    else {"broadcast_buffers": False}
)


class Ddp(Together):
    """Replicas with summed gradients.

    DDP divides the sum by the number of ranks; the loss is scaled up by it beforehand, which keeps
    torch's own reduction path and gives the gradient of the global batch."""

    facts = facts_of("ddp")

    def __init__(self, recipe: Recipe, model: nn.Module, process: Process, job: DdpJob) -> None:
        super().__init__(recipe, model, process)
        self._job = job

    @property
    def gradient_scale(self) -> float:
        return float(self.process.world)

    def settle(self, micro_batch: MicroBatch, run_backward: RunBackward) -> list[Finding]:
        """Look for unused parameters, wrap, and settle the order of DDP's buckets.

        DDP orders its buckets anew after the first backward, so a resumed run would add up
        gradients in another order than the unbroken one: two passes before the first step, thrown
        away, put both in the same state. Buffers are put back; randomness is seeded per slot."""
        with self._buffers.untouched() as before:
            run_backward(micro_batch)
            findings = self._buffers.notice_changes(before)
            unused = self._unused_parameters()
            self.clear_gradients()
            findings += self._wrap(unused)
            for _ in range(2):
                run_backward(micro_batch)
            self.clear_gradients()
        return findings

    def _wrap(self, unused: list[str]) -> list[Finding]:
        findings: list[Finding] = []
        find_unused = self._job.find_unused_parameters
        if find_unused == "auto":
            find_unused = bool(unused)
            findings = unused_findings(
                unused,
                "DDP then searches the graph in every step (ddp.find_unused_parameters = auto "
                "turned that on)",
            )
        device = self.process.device
        self.loss_module = DistributedDataParallel(
            self.loss_module,
            device_ids=[device.index] if device.type == "cuda" else None,
            bucket_cap_mb=self._job.bucket_mb,
            find_unused_parameters=find_unused,
            gradient_as_bucket_view=True,
            **_NO_BUFFER_SYNC,
        )
        return findings

    def hold_gradients(self) -> AbstractContextManager[Any]:
        assert isinstance(self.loss_module, DistributedDataParallel)
        return self.loss_module.no_sync()

    def contribute_nothing(self) -> None:
        self.loss_module(None, None).backward()

    def _unused_parameters(self) -> list[str]:
        """Trainable parameters that got no gradient on some rank."""
        named = [(n, p) for n, p in self.model.named_parameters() if p.requires_grad]
        counts = self.process.count(p.grad is None for _, p in named)
        counted = list(zip(named, counts, strict=True))
        # A parameter no rank reaches keeps no gradient, also on a rank that has no micro-batch.
        self.bare_loss.reachable = [p for (_, p), count in counted if count < self.process.world]
        return [name for (name, _), count in counted if count]
