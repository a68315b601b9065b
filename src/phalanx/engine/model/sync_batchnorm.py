"""BatchNorm over all ranks: statistics of the micro-batches that the ranks run at the same time.

forward     each rank's count, mean and sum of squared deviations are gathered and joined in rank
            order, so that every rank has the same statistics to the bit
backward    two sums over the ranks for each norm

torch's nn.SyncBatchNorm runs on CUDA only, and counts the samples of every rank. Here a rank whose
pass only keeps in step with the others (`is_silent`) counts for nothing, in either direction. The
modules stay what they are, with their names and values; they get another forward. Statistics travel
in a process group of their own: they cannot be mixed up with gradients under way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from phalanx.engine.process.group import Process


class BatchStatistics:
    """What the norms of one model share: the ranks, and whether this rank counts."""

    def __init__(self, process: Process) -> None:
        self._world = process.world
        self._group = process.open_group()
        self.is_silent: Callable[[], bool] = lambda: False
        """Whether this rank's pass only keeps in step with the others."""

    def __deepcopy__(self, memo: dict[int, Any]) -> BatchStatistics:
        return self  # a process group cannot be copied, and a copy of the model talks in this one

    def gather(self, row: Tensor) -> Tensor:
        """The rows of every rank, in rank order."""
        rows = [torch.empty_like(row) for _ in range(self._world)]
        dist.all_gather(rows, row, group=self._group)
        return torch.stack(rows)

    def sum_(self, tensor: Tensor) -> Tensor:
        """The sum over the ranks, in place."""
        dist.all_reduce(tensor, group=self._group)
        return tensor


def synchronise_norms(model: nn.Module, process: Process) -> BatchStatistics:
    """Make every BatchNorm of the model take its statistics over all ranks while it trains."""
    statistics = BatchStatistics(process)
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.forward = _Synced(module, statistics)  # type: ignore[method-assign]
    return statistics


def find_own_norms(model: nn.Module) -> list[str]:
    """Names of BatchNorm modules with a forward of their own, which would be lost."""
    known = (_BatchNorm.forward, nn.SyncBatchNorm.forward)
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and type(module).forward not in known
    ]


class _Synced:
    """A norm's forward."""

    def __init__(self, norm: _BatchNorm, statistics: BatchStatistics) -> None:
        functools.update_wrapper(self, norm.forward)
        self._norm = norm
        self._forward = norm.forward
        self._statistics = statistics

    def __call__(self, input: Tensor) -> Tensor:
        norm = self._norm
        if not norm.training:
            output: Tensor = self._forward(input)
            return output
        if not isinstance(norm, nn.SyncBatchNorm):
            norm._check_input_dim(input)  # type: ignore[no-untyped-call]
        given = (input, norm.weight, norm.bias, norm.eps, self._statistics)
        output, mean, variance = _Normalize.apply(*given)  # type: ignore[no-untyped-call]
        if norm.track_running_stats and norm.running_mean is not None:
            self._track(mean, variance)
        return output

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor) -> None:
        norm = self._norm
        assert norm.running_mean is not None and norm.running_var is not None
        factor = norm.momentum
        if norm.num_batches_tracked is not None:
            norm.num_batches_tracked.add_(1)
            if factor is None:
                factor = 1.0 / float(norm.num_batches_tracked)
        factor = factor or 0.0
        for running, value in ((norm.running_mean, mean), (norm.running_var, variance)):
            running.mul_(1 - factor).add_(value.to(running.dtype), alpha=factor)


class _Normalize(torch.autograd.Function):
    """(input, weight, bias) -> normalized output, and the mean and unbiased variance used."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        statistics: BatchStatistics,
    ) -> tuple[Tensor, Tensor, Tensor]:
        wide = _wide(input)
        ctx.is_silent = statistics.is_silent()
        count, mean, squares = _join(statistics.gather(_row(wide, is_silent=ctx.is_silent)))
        inverse = (squares / count + eps).rsqrt()
        output = (wide - _spread(mean, wide)) * _spread(inverse, wide)
        if weight is not None and bias is not None:
            output = output * _spread(weight, wide) + _spread(bias, wide)
        ctx.save_for_backward(input, weight, mean, inverse, count)
        ctx.statistics = statistics
        unbiased = squares / (count - 1).clamp(min=1)
        ctx.mark_non_differentiable(mean, unbiased)
        return output.to(input.dtype), mean, unbiased

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor, *unused: Any) -> tuple[Tensor | None, ...]:
        input, weight, mean, inverse, count = ctx.saved_tensors
        wide, normal = _wide(gradient), _wide(input)
        normal = (normal - _spread(mean, normal)) * _spread(inverse, normal)
        axes = _axes(wide)
        mine = torch.stack([wide.sum(axes), (wide * normal).sum(axes)])
        if ctx.is_silent:
            mine = torch.zeros_like(mine)
        of_input = None
        if ctx.needs_input_grad[0]:
            means = ctx.statistics.sum_(mine.clone()) / count
            wide = wide - _spread(means[0], wide) - normal * _spread(means[1], wide)
            scale = inverse if weight is None else inverse * weight
            of_input = (wide * _spread(scale, wide)).to(input.dtype)
            if ctx.is_silent:  # its samples are no part of the statistics
                of_input = torch.zeros_like(input)
        of_weight = mine[1].to(weight.dtype) if ctx.needs_input_grad[1] else None
        of_bias = mine[0].to(weight.dtype) if ctx.needs_input_grad[2] else None
        return of_input, of_weight, of_bias, None, None


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _axes(tensor: Tensor) -> list[int]:
    """All but the channels."""
    return [axis for axis in range(tensor.dim()) if axis != 1]


def _spread(values: Tensor, like: Tensor) -> Tensor:
    """One value per channel, in a shape that goes with all of them."""
    return values.to(like.dtype).view(1, -1, *(1 for _ in range(like.dim() - 2)))


def _row(input: Tensor, *, is_silent: bool) -> Tensor:
    """Count, means and sums of squared deviations of this rank's part, one behind the other."""
    channels = input.shape[1]
    if is_silent or input.numel() == 0:
        return input.new_zeros(1 + 2 * channels)
    axes = _axes(input)
    mean = input.mean(axes)
    squares = (input - _spread(mean, input)).square().sum(axes)
    count = input.new_full((1,), input.numel() // channels)
    return torch.cat([count, mean, squares])


def _join(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same three of all parts together (Chan, Golub and LeVeque)."""
    counts, rest = rows[:, :1], rows[:, 1:]
    means, squares = rest.chunk(2, dim=1)
    count = counts.sum().clamp(min=1)
    mean = (counts * means).sum(0) / count
    return count, mean, (squares + counts * (means - mean).square()).sum(0)
