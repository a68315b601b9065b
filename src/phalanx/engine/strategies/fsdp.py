"""PyTorch's FSDP2: weights, gradients and optimizer state are spread over the ranks.

Each block of the model gathers its weights just before it runs and lets go of them afterwards;
gradients are summed and scattered in backward, after every micro-batch, so that no rank ever holds
a whole gradient. Forward and backward therefore wait for the other ranks (`is_lockstep`).

With `shard_ranks` below the number of ranks, groups of that many ranks hold a whole model each:
sharded inside a node, where links are fast, and replicated across nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.nn.modules.batchnorm import _BatchNorm

from phalanx.engine.model.blocks import find_blocks
from phalanx.engine.model.blueprint import Blueprint
from phalanx.engine.model.shards import is_sharded, local_part, shard_of
from phalanx.engine.process.group import Process
from phalanx.engine.strategies.base import StepSums
from phalanx.engine.strategies.optimizers import Optimizer
from phalanx.engine.strategies.precision import Precision
from phalanx.engine.strategies.together import Together
from phalanx.errors import Finding, UserError
from phalanx.job.schema import Fsdp as FsdpJob
from phalanx.job.strategies import facts_of
from phalanx.recipe.interface import Recipe


def make_fsdp(
    recipe: Recipe,
    process: Process,
    precision: Precision,
    job: FsdpJob,
    *,
    shard_ranks: int,
    build: str,
    is_offloaded: bool = False,
    adapt: Callable[[nn.Module], None] = lambda model: None,
    unread: Container[str] = (),
) -> Fsdp:
    """The strategy with the recipe's model, built whole on every rank's host or in parts; `adapt`
    gets it before it is sharded. Weights named in `unread` get their values later."""
    if build == "whole":
        model = precision.convert(recipe.model(), unread=unread)
        adapt(model)
        strategy = Fsdp(recipe, model, process, precision, job, shard_ranks, is_offloaded)
        _move_whole(model, process.device)
        return strategy
    blueprint = _draw(recipe)
    model = precision.convert(blueprint.model)
    adapt(model)
    strategy = Fsdp(recipe, model, process, precision, job, shard_ranks, is_offloaded)
    blueprint.make_room(torch.device("cpu") if is_offloaded else process.device)
    named = [*model.named_parameters(), *model.named_buffers()]
    blueprint.fill({n: shard_of(t, is_first=True) for n, t in named if n not in unread})
    _move_whole(model, process.device)
    return strategy


def _draw(recipe: Recipe) -> Blueprint:
    try:
        return Blueprint(recipe)
    except Exception as error:
        raise UserError(
            Finding(
                slug="build-parts",
                what="the recipe's model cannot be built in parts, without memory at first",
                why=f"recipe.model() on torch's meta device: {type(error).__name__}: {error}",
                fix="fsdp.build=whole, if every rank's whole model fits into host memory; or do "
                "not look at the values of weights while the model is built",
            )
        ) from error


def _is_whole(parameter: nn.Parameter) -> bool:
    """FSDP2 takes no parameters without a dimension: every rank keeps them."""
    return parameter.dim() == 0


def _move_whole(model: nn.Module, device: torch.device) -> None:
    """Put what is not sharded where it is used, also when shards are kept on the host."""
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if _is_whole(parameter):
                parameter.data = parameter.data.to(device)
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = buffer.to(device)


class Fsdp(Together):
    """Shards with summed gradients."""

    facts = facts_of("fsdp")

    def __init__(
        self,
        recipe: Recipe,
        model: nn.Module,
        process: Process,
        precision: Precision,
        job: FsdpJob,
        shard_ranks: int,
        is_offloaded: bool = False,
    ) -> None:
        super().__init__(recipe, model, process)
        self.bare_loss.reachable = []  # whole parameters, which would stay alive here
        self._is_first_replica = process.rank < shard_ranks
        whole = [p for p in model.parameters() if _is_whole(p)]
        sharding = _Sharding(process, precision, job, shard_ranks, whole, is_offloaded)
        _shard(recipe, self.bare_loss, sharding)
        for module in self._sharded_modules():
            # The loss is divided by the weight of the global batch before: gradients are summed.
            # On gloo only the plain sum is there; a factor would ask for PREMUL_SUM.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)

    def adopt(self, optimizer: Optimizer, precision: Precision, clip_norm: float | None) -> None:
        if precision.scaler.is_enabled():
            precision.scaler = _ShardScaler(self.process)
        super().adopt(optimizer, precision, clip_norm)

    def after_step(self, num_slots: int, sums: StepSums) -> None:
        for parameter in self.model.parameters():
            if _is_whole(parameter) and parameter.grad is not None:
                self.process.sum_(parameter.grad)
        super().after_step(num_slots, sums)

    def update(self, divisor: torch.Tensor | None) -> torch.Tensor | None:
        if self.precision.scaler.is_enabled() and self.clip_norm is None:
            # A fused optimizer would look for an overflow in its own shards only.
            self.precision.scaler.unscale_(self.optimizer)
        return super().update(divisor)

    def gradients(self) -> list[torch.Tensor]:
        return [local_part(gradient) for gradient in super().gradients()]

    def gradient_norm(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        # Each element once: of several replicas the first counts, as does the first rank for what
        # every rank keeps whole.
        mine = [
            torch.linalg.vector_norm(part).square()
            for gradient, part in zip(super().gradients(), gradients, strict=True)
            if (self._is_first_replica if is_sharded(gradient) else self.process.is_first)
        ]
        device = gradients[0].device
        zero = torch.zeros((), device=device, dtype=gradients[0].dtype)
        parts = [zero, *(part.to(device) for part in mine)]
        return self.process.sum_(torch.stack(parts).sum()).sqrt()

    def after_evaluation(self) -> None:
        # The outermost part keeps its gathered weights after a forward, and would keep them when
        # the weights are changed from outside.
        for module in self._sharded_modules():
            module.reshard()

    def _sharded_modules(self) -> list[FSDPModule]:
        return [m for m in self.bare_loss.modules() if isinstance(m, FSDPModule)]


class _ShardScaler(torch.amp.GradScaler):
    """Loss scaling over shards: an overflow in one rank's shard is one for all. (torch's own for
    sharded gradients does not take them together with parameters that are not sharded.)"""

    def __init__(self, process: Process) -> None:
        super().__init__(process.device.type)
        self._process = process

    def _unscale_grads_(
        self, optimizer: Optimizer, inv_scale: Any, found_inf: Any, allow_fp16: bool
    ) -> dict[torch.device, torch.Tensor]:
        gradients: dict[torch.device, list[torch.Tensor]] = {}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    part = local_part(parameter.grad)
                    gradients.setdefault(part.device, []).append(part)
        total = found_inf.clone()
        for device, parts in gradients.items():
            found = torch.zeros_like(found_inf, device=device)
            torch._amp_foreach_non_finite_check_and_unscale_(parts, found, inv_scale.to(device))
            total += found.to(total.device)
        # One number for all devices, and 1: the fused kernels compare with 1, not with 0.
        return {total.device: self._process.sum_(total).clamp_(max=1.0)}


class _Sharding:
    """How modules are sharded: the arguments of `fully_shard`."""

    def __init__(
        self,
        process: Process,
        precision: Precision,
        job: FsdpJob,
        shard_ranks: int,
        whole: list[nn.Parameter],
        is_offloaded: bool,
    ) -> None:
        self._mesh = _make_mesh(process, shard_ranks)
        self._offload = OffloadPolicy()
        if is_offloaded:
            self._offload = CPUOffloadPolicy(pin_memory=process.device.type == "cuda")
        self._job = job
        self._whole = set(whole)
        self._half = precision.half

    def apply(self, module: nn.Module, *, in_half: bool = True) -> None:
        dtype = self._half if in_half else None
        fully_shard(
            module,
            mesh=self._mesh,
            reshard_after_forward=self._job.reshard_after_forward,
            # Weights travel in the narrow type, as autocast would round them anyway; gradients are
            # summed in fp32. Autocast, not FSDP, decides about the inputs.
            mp_policy=MixedPrecisionPolicy(
                param_dtype=dtype,
                reduce_dtype=torch.float32 if dtype is not None else None,
                cast_forward_inputs=False,
            ),
            offload_policy=self._offload,
            ignored_params=self._whole,
        )

    @property
    def is_half(self) -> bool:
        return self._half is not None


def _shard(recipe: Recipe, root: nn.Module, sharding: _Sharding) -> None:
    """Shard from the inside out: what an inner module holds is no longer the outer one's."""
    model = root.model
    assert isinstance(model, nn.Module)
    blocks = find_blocks(recipe, model)
    if sharding.is_half:
        for module in model.modules():
            if isinstance(module, _BatchNorm) and module.affine:
                sharding.apply(module, in_half=False)  # its kernels want fp32 weights
    for _, block in blocks:
        sharding.apply(block)
    sharding.apply(root)


def _make_mesh(process: Process, shard_ranks: int) -> DeviceMesh:
    kind = process.device.type
    if shard_ranks == process.world:
        return init_device_mesh(kind, (process.world,), mesh_dim_names=("shard",))
    shape = (process.world // shard_ranks, shard_ranks)
    return init_device_mesh(kind, shape, mesh_dim_names=("replicate", "shard"))
