"""The exponential moving average of the weights.

after each optimizer step:    average = decay x average + (1 - decay) x weight
with warm-up:                 decay = min(decay, (1 + n) / (10 + n)), n averagings done before
with a ramp:                  decay = decay x (1 - exp(-(n + 1) / ramp))

Parameters that learn are averaged, in fp32 or wider. Frozen parameters are the model's own, and so
are buffers (BatchNorm's statistics) where the job does not ask for their average. Replicas are
equal on every rank and so are their averages; under a sharded strategy each rank averages its
shards. Nothing is exchanged, and nothing waits for the device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch

from phalanx.engine.model.shards import Shard, find_aliases
from phalanx.engine.strategies.base import Strategy
from phalanx.engine.strategies.optimizers import Optimizer
from phalanx.errors import Finding
from phalanx.job.schema import Ema as EmaJob

_CHUNK_BYTES = 256 * 2**20  # of averages that are folded at a time on a GPU


class WeightAverage:
    """Keeps the average of what this rank holds of the trainable parameters, on their device."""

    def __init__(
        self,
        strategy: Strategy,
        *,
        decay: float,
        warmup: bool = False,
        ramp: int | None = None,
        buffers: bool = False,
    ) -> None:
        """Start from the weights as they are now."""
        self._strategy = strategy
        self._decay = decay
        self._warmup = warmup
        self._ramp = ramp
        self._buffers = buffers
        self._updates = 0
        state = strategy.model_state()
        learning = [name for name, p in strategy.model.named_parameters() if p.requires_grad]
        if buffers:
            floating = (n for n, b in strategy.model.named_buffers() if b.is_floating_point())
            learning += [name for name in floating if name in state]
        self._shards = {name: state[name] for name in learning}
        self._weights = [shard.tensor for shard in self._shards.values()]
        self._averages = [
            weight.to(torch.promote_types(weight.dtype, torch.float32), copy=True)
            for weight in self._weights
        ]

    def after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Update after a step the optimizer really took: torch's hook."""
        # An optimizer is not called for a step that is skipped, or it is fused and reads on the
        # device that nothing is to be done. Reading that here would wait for a GPU.
        skipped = getattr(optimizer, "found_inf", None)
        if skipped is None:
            skipped = self._strategy.skips.last
        if isinstance(skipped, torch.Tensor) and skipped.device.type == "cpu":
            skipped = bool(skipped.item())
        if isinstance(skipped, torch.Tensor):
            self._update_unless(skipped)
        elif not skipped:
            self.update()

    @torch.no_grad()
    def update(self) -> None:
        """Fold the weights of this step into the average."""
        torch._foreach_lerp_(self._averages, self._wide_weights(), 1 - self.next_decay)
        self._updates += 1

    @torch.no_grad()
    def _update_unless(self, skipped: torch.Tensor) -> None:
        """The same where only the device knows whether it is to be done: by nothing after a skipped
        step. No kernel interpolates by a number on the device: it takes three, and what they hand
        over. A skipped step counts for the warm-up."""
        rate = (1 - skipped.to(self._averages[0].dtype)) * (1 - self.next_decay)
        weights = self._wide_weights()
        for first, last in self._chunks:
            averages = self._averages[first:last]
            change = torch._foreach_sub(weights[first:last], averages)
            torch._foreach_mul_(change, rate)
            torch._foreach_add_(averages, change)
        self._updates += 1

    def _wide_weights(self) -> list[torch.Tensor]:
        return [
            weight.to(average.dtype)  # the weight itself where the type is the same
            for weight, average in zip(self._weights, self._averages, strict=True)
        ]

    @cached_property
    def _chunks(self) -> list[tuple[int, int]]:
        """Ranges of the averages that take a bounded amount of memory together."""
        cuts, size = [0], 0
        for index, average in enumerate(self._averages):
            if size and size + average.nbytes > _CHUNK_BYTES:
                cuts.append(index)
                size = 0
            size += average.nbytes
        return list(pairwise([*cuts, len(self._averages)]))

    @property
    def next_decay(self) -> float:
        """How much of the average stays in the next update."""
        if self._ramp is not None:
            return self._decay * (1 - math.exp(-(self._updates + 1) / self._ramp))
        if not self._warmup:
            return self._decay
        return min(self._decay, (1 + self._updates) / (10 + self._updates))

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Inside, the model has the averaged weights; afterwards its own, to the last bit."""
        kept = self._put_averages()
        self._strategy.weights_changed()
        try:
            yield
        finally:
            self._put_back(kept)
            self._strategy.weights_changed()

    @torch.no_grad()
    def _put_averages(self) -> list[torch.Tensor | None]:
        """Exchange weights and averages one by one, so that no second copy of the model is needed.
        Weights of a narrower type are kept aside instead: the average would lose bits in them."""
        kept: list[torch.Tensor | None] = []
        for weight, average in zip(self._weights, self._averages, strict=True):
            raw = weight.clone()
            weight.copy_(average)
            if raw.dtype == average.dtype:
                average.copy_(raw)
                kept.append(None)
            else:
                kept.append(raw)
        return kept

    @torch.no_grad()
    def _put_back(self, kept: list[torch.Tensor | None]) -> None:
        for weight, average, raw in zip(self._weights, self._averages, kept, strict=True):
            if raw is not None:
                weight.copy_(raw)
                continue
            averaged = weight.clone()
            weight.copy_(average)
            average.copy_(averaged)

    def averages(self) -> dict[str, Shard]:
        """The averages that this rank holds, by parameter."""
        return {
            name: shard.with_tensor(average)
            for (name, shard), average in zip(self._shards.items(), self._averages, strict=True)
        }

    def shards(self) -> dict[str, Shard]:
        """The model's state under its own names, with averages in place of what learns."""
        state = self._strategy.model_state() | self.averages()
        for alias, name in find_aliases(self._strategy.model).items():
            state[alias] = state[name]
        return state

    def load(self, record: Mapping[str, Any]) -> None:
        """Go on from a record, once the averages of that time are in place."""
        self._updates = int(record["updates"])

    def record(self) -> dict[str, Any]:
        """What a checkpoint remembers beside the tensors."""
        return {
            "decay": self._decay,
            "warmup": self._warmup,
            "ramp": self._ramp,
            "buffers": self._buffers,
            "updates": self._updates,
        }


def begin_average(job: EmaJob, strategy: Strategy) -> WeightAverage | None:
    """The average a job asks for, started from the weights the model has now; it follows every
    update from here on."""
    if job.decay is None:
        return None
    average = WeightAverage(
        strategy, decay=job.decay, warmup=job.warmup, ramp=job.ramp, buffers=job.buffers
    )
    strategy.follow_updates(average.after_step)
    return average


def ema_findings(job: EmaJob, record: Mapping[str, Any] | None, step: int) -> list[Finding]:
    """What changes for the average of a run that goes on; `record` is its checkpoint's."""
    if record is None and job.decay is not None:
        return [
            Finding(
                slug="ema-begins",
                what=f"the average of the weights begins at step {step}, not at the start",
                why=f"ema.decay = {job.decay:g} now; the checkpoint holds no average, so it starts "
                "from the weights of that step",
                fix="nothing, if that is what you want",
                severity="note",
            )
        ]
    if record is not None and job.decay is None:
        return [
            Finding(
                slug="ema-ends",
                what=f"the average of the weights ends at step {step}",
                why=f"ema.decay was {record['decay']:g} and is null now; checkpoints from here on "
                "hold no average",
                fix=f"ema.decay={record['decay']:g} continues it",
                severity="warning",
            )
        ]
    if record is None:
        return []
    assert job.decay is not None
    # Older versions had neither ramp nor buffers.
    known = {"ramp": None, "buffers": False, **record}
    now = {name: getattr(job, name) for name in ("decay", "warmup", "ramp", "buffers")}
    changed = [name for name, value in now.items() if known[name] != value]
    if not changed:
        return []
    return [
        Finding(
            slug="ema-changes",
            what=f"the average of the weights goes on with other settings from step {step}",
            why="; ".join(f"ema.{n}: {known[n]} then, {now[n]} now" for n in changed),
            fix="nothing, if that is what you want",
            severity="warning",
        )
    ]
