"""Steps that change nothing, because their loss or a gradient is not finite.

    a loss that is not finite      makes the gradient that its backward begins with NaN, so that the
                                   reduction of gradients tells all ranks, without a word more
    the norm of all gradients      is then not finite on any rank, and each finds so by itself
    on CUDA                        torch's fused optimizers read that on the device and leave
                                   weights and state as they are; the host hears of it where a step
                                   is logged and waits for the device anyway
    elsewhere                      the host reads the norm, which is at hand, and calls no optimizer

Running statistics of BatchNorm, which forward has changed already, are put back.
"""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor, nn

from phalanx.engine.model.buffers import running_statistics
from phalanx.engine.strategies.optimizers import Optimizer

_REMEMBERED = 1024  # steps between two that are logged, of which each is known


def poisoned(gradient: Tensor, loss: Tensor) -> Tensor:
    """The gradient to begin backward with: itself, or NaN where the loss is not finite."""
    return torch.add(gradient, loss, alpha=0)


def flag_of(norm: Tensor) -> Tensor:
    """1.0 where a norm is not finite, else 0.0; two small kernels."""
    return torch.nan_to_num(norm * 0, nan=1.0).float()


def is_decided_on_device(optimizer: Optimizer, norm: Tensor) -> bool:
    """Whether the optimizer's kernels read by themselves that they have nothing to do."""
    return norm.device.type == "cuda" and all(
        group.get("fused") and all(p.device == norm.device for p in group["params"])
        for group in optimizer.param_groups
    )


class Skips:
    """Which of the last steps changed nothing."""

    def __init__(self) -> None:
        self._flags: deque[bool | Tensor] = deque(maxlen=_REMEMBERED)
        self._history: Tensor | None = None
        self.last: bool | Tensor = False
        """Of the last step: known, or 1.0 or 0.0 on the device."""

    def note(self, flag: bool | Tensor, *, is_captured: bool) -> None:
        """Remember a step. `is_captured`: in a CUDA graph, where each step writes to the same
        addresses."""
        if not is_captured or not isinstance(flag, Tensor):
            self._flags.append(flag)
            self.last = flag
            return
        if self._history is None:
            self._history = torch.zeros(_REMEMBERED, device=flag.device)
        self._history.copy_(torch.cat([self._history[1:], flag.reshape(1)]))
        self.last = self._history[-1]

    def read(self, count: int) -> list[bool]:
        """The last steps, the oldest first; waits for the device."""
        if self._history is not None:
            flags: list[bool | float] = self._history[-count:].tolist()
        else:
            known = list(self._flags)[-count:]
            on_device = [flag for flag in known if isinstance(flag, Tensor)]
            values = iter(torch.stack(on_device).tolist() if on_device else ())
            flags = [next(values) if isinstance(flag, Tensor) else flag for flag in known]
        self._flags.clear()
        return [bool(flag) for flag in flags]


class KeptStatistics:
    """The running statistics of BatchNorm as they were before the step."""

    def __init__(self, model: nn.Module) -> None:
        self._buffers = running_statistics(model)
        self._kept = self._read()
        self._places, first = [], 0
        for buffer in self._buffers:
            last = first + buffer.numel()
            self._places.append(self._kept[first:last].view_as(buffer))
            first = last

    @property
    def has_any(self) -> bool:
        return bool(self._buffers)

    @torch.no_grad()
    def settle(self, flag: bool | Tensor) -> bool:
        """Put them back after a skipped step, keep them after any other; returns whether they may
        have been put back. Five small kernels where only the device knows."""
        if isinstance(flag, Tensor):
            self._kept.copy_(torch.where(flag.bool(), self._kept, self._read()))
        elif not flag:
            self._kept.copy_(self._read())
            return False
        torch._foreach_copy_(self._buffers, self._places)
        return True

    def _read(self) -> Tensor:
        if not self._buffers:
            return torch.empty(0)
        return torch.cat([buffer.detach().reshape(-1) for buffer in self._buffers])
