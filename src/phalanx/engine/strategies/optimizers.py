"""Optimizers, and the learning rate as a function of the optimizer step."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from phalanx.engine.model.shards import is_sharded
from phalanx.job.schema import Optimizer as OptimizerJob
from phalanx.job.schema import Schedule as ScheduleJob
from phalanx.recipe.interface import Recipe

Optimizer = torch.optim.Optimizer


def make_optimizer(recipe: Recipe, model: nn.Module, job: OptimizerJob, lr: float) -> Optimizer:
    """The job's optimizer over the recipe's groups, or over everything that can learn."""
    groups = recipe.groups(model)
    if groups is None:
        groups = [{"params": [p for p in model.parameters() if p.requires_grad]}]
    groups = [part for group in groups for part in _apart(group)]
    for group in groups:
        group["lr_scale"] = group.get("lr_scale", 1.0)
    settings: dict[str, Any] = {"lr": lr, "weight_decay": job.weight_decay}
    fused = can_fuse(model)
    if job.name == "sgd":
        # torch 2.13 has a fused AdamW for shards, and no fused SGD.
        settings["fused"] = fused and not any(map(is_sharded, model.parameters()))
        optimizer = torch.optim.SGD(
            groups, momentum=job.momentum, nesterov=job.nesterov, **settings
        )
        if settings["fused"] and job.momentum:
            _begin_momentum(optimizer)
        return optimizer
    betas = (job.betas[0], job.betas[1])
    return torch.optim.AdamW(groups, betas=betas, eps=job.eps, fused=fused, **settings)


def _begin_momentum(optimizer: Optimizer) -> None:
    """With zeros, from which the first step makes the gradient, as torch does. Torch's fused kernel
    (2.13) takes memory that was never written, and in fp16 a first step that overflows leaves it
    so: the second one then adds whatever was there."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def _apart(group: dict[str, Any]) -> list[dict[str, Any]]:
    """A group in two when only some of its parameters are sharded: no kernel takes both kinds."""
    parameters = list(group["params"])
    kinds = {is_sharded(parameter) for parameter in parameters}
    if len(kinds) < 2:
        return [group]
    return [
        {**group, "params": [p for p in parameters if is_sharded(p) == kind]}
        for kind in sorted(kinds)
    ]


def can_fuse(model: nn.Module) -> bool:
    """Whether torch's fused kernels take all of this model's parameters."""
    return all(
        parameter.device.type in ("cuda", "cpu", "mps") and parameter.is_floating_point()
        for parameter in model.parameters()
        if parameter.requires_grad
    )


class Schedule:
    """The learning rate at each optimizer step. It counts steps, never processes."""

    def __init__(
        self,
        job: ScheduleJob,
        *,
        peak_lr: float,
        warmup_steps: int,
        total_steps: int,
        momentum: float = 0.0,
    ) -> None:
        """`momentum` is SGD's after warm-up."""
        self._momentum = momentum
        self._first_momentum = job.warmup_momentum
        self._shape = job.name
        self._floor = job.min_lr_ratio
        self._peak = peak_lr
        self._warmup = warmup_steps
        self._total = total_steps

    def lr_at(self, step: int) -> float:
        """The rate of step `step`, counted from 0."""
        if step < self._warmup:
            return self._peak * (step + 1) / self._warmup
        if self._shape == "constant":
            return self._peak
        done = (step - self._warmup) / max(1, self._total - self._warmup)
        fall = 1 - done if self._shape == "linear" else (1 + math.cos(math.pi * done)) / 2
        return self._peak * (self._floor + (1 - self._floor) * fall)

    def group_lr(self, group: dict[str, Any], step: int, common: float | None = None) -> float:
        """The rate of an optimizer group: its share of the common one, to which it falls or rises
        in the warm-up from a `warmup_lr` of its own."""
        lr = (self.lr_at(step) if common is None else common) * group["lr_scale"]
        first = group.get("warmup_lr", 0.0)
        if first and step < self._warmup:
            lr += first * (1 - (step + 1) / self._warmup)
        return float(lr)

    def rates(self, optimizer: Optimizer, step: int) -> tuple[float, list[float]]:
        """Return the common rate of a step, and that of each group."""
        lr = self.lr_at(step)
        return lr, [self.group_lr(group, step, lr) for group in optimizer.param_groups]

    def apply(self, optimizer: Optimizer, step: int) -> float:
        """Set rate and momentum of every group for a step; returns the common rate."""
        lr, rates = self.rates(optimizer, step)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
            if self._first_momentum is not None and "momentum" in group:
                group["momentum"] = self.momentum_at(step)
        return lr

    def momentum_at(self, step: int) -> float:
        """SGD's momentum at a step."""
        if self._first_momentum is None or step >= self._warmup:
            return self._momentum
        share = (step + 1) / self._warmup
        return self._first_momentum + (self._momentum - self._first_momentum) * share
