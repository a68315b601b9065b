"""What a strategy is: how the model is held, how gradients of many ranks become one update, and
what each rank holds of the state that a checkpoint keeps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch import nn

from phalanx.engine.data.micro_batches import MicroBatch
from phalanx.engine.model.shards import Shard, shard_of
from phalanx.engine.model.tensor_file import TensorFile
from phalanx.engine.process.group import Process
from phalanx.engine.strategies.loss_module import LossModule
from phalanx.engine.strategies.optimizer_state import OptimizerState, named_state, put_state
from phalanx.engine.strategies.optimizers import Optimizer
from phalanx.engine.strategies.precision import Precision
from phalanx.engine.strategies.skipped_steps import (
    KeptStatistics,
    Skips,
    flag_of,
    is_decided_on_device,
)
from phalanx.errors import Finding
from phalanx.job.strategies import facts_of
from phalanx.recipe.interface import Batch, Recipe, Term
from phalanx.recipe.showing import Media, Sample

RunBackward = Callable[[MicroBatch], Mapping[str, torch.Tensor]]
"""Runs a forward and backward that no update follows; returns the sums of the terms."""

_CLIP_EPSILON = 1e-6  # torch's own


class StepSums(Protocol):
    """The loss sums of a step so far, for a strategy that reduces them itself."""

    def take(self) -> torch.Tensor:
        """Take the sums out, in one row."""
        ...

    def put(self, row: torch.Tensor) -> None:
        """Put the sums over all slots of all ranks in."""
        ...


class Strategy:
    """One rank that holds the whole model: the base of the others, and `single` itself."""

    facts = facts_of("single")

    optimizer: Optimizer
    precision: Precision
    clip_norm: float | None
    _is_on_device: bool | None = None
    """Whether the device decides which steps are skipped."""
    _is_one_kind = False
    """Whether all that learns is of one type on one device."""

    def __init__(self, recipe: Recipe, model: nn.Module, process: Process) -> None:
        self.model = model
        self.process = process
        self.is_lockstep = self.facts.is_lockstep
        """True also where BatchNorm takes its statistics over all ranks."""
        self.bare_loss = LossModule(recipe, model)
        self.loss_module: nn.Module = self.bare_loss
        self.is_idle = False
        """True during a forward and backward that only keep in step with the other ranks."""
        self.on_gradients: Callable[[], None] = lambda: None
        """Called in `update` when the gradients are those of the global batch, not clipped yet."""
        self.skips = Skips()
        """Which steps changed nothing because something was not finite."""
        self._statistics: KeptStatistics | None = None
        self._followers: list[Callable[..., None]] = []
        self._are_followers_apart = False

    # -- before the first step, in this order

    def adopt(self, optimizer: Optimizer, precision: Precision, clip_norm: float | None) -> None:
        """Take over what updates the weights."""
        self.optimizer = optimizer
        self.precision = precision
        self.clip_norm = clip_norm
        kinds = {(p.device, p.dtype) for p in self.model.parameters() if p.requires_grad}
        self._is_one_kind = len(kinds) == 1

    def settle(self, micro_batch: MicroBatch, run_backward: RunBackward) -> list[Finding]:
        """Whatever must run and be thrown away before the first step."""
        return []

    def resume(self) -> None:
        """Called once the weights of the first step are in place."""
        statistics = KeptStatistics(self.model)
        self._statistics = statistics if statistics.has_any else None

    def clear_gradients(self) -> None:
        """Forget the gradients of passes that are thrown away."""
        for parameter in self.model.parameters():
            parameter.grad = None

    # -- a step

    def before_step(self, num_slots: int) -> None:
        """Called before the first micro-batch of a step, also on a rank that has none."""

    def loss(self, batch: Batch, keys: torch.Tensor) -> Mapping[str, Term]:
        """The recipe's terms for a micro-batch."""
        terms: Mapping[str, Term] = self.loss_module(batch, keys)
        return terms

    def hold_gradients(self) -> AbstractContextManager[Any]:
        """Inside, backward adds up gradients on this rank without telling the others."""
        return nullcontext()

    @property
    def takes_gradient(self) -> bool:
        """Whether `backward` takes a gradient to begin with."""
        return not self.precision.scaler.is_enabled()

    def backward(self, objective: torch.Tensor, gradient: torch.Tensor | None = None) -> None:
        """Add the gradient of a micro-batch's part of the loss."""
        scaler = self.precision.scaler
        scaled: torch.Tensor = scaler.scale(objective) if scaler.is_enabled() else objective
        torch.autograd.backward(scaled, gradient)

    def contribute_nothing(self) -> None:
        """Take part in the reduction of a step in which this rank has no micro-batch."""

    @contextmanager
    def idling(self) -> Iterator[None]:
        """Around the passes of a rank in lock-step that has no micro-batch left."""
        self.is_idle = True
        try:
            yield
        finally:
            self.is_idle = False

    @property
    def gradient_scale(self) -> float:
        """What the loss is multiplied by because the strategy divides gradients by it."""
        return 1.0

    def after_slot(self, slot: int, sums: StepSums) -> None:
        """Called after each micro-batch's backward."""

    def after_step(self, num_slots: int, sums: StepSums) -> None:
        """Make gradients, and buffers that forward changed, the same on every rank."""

    def update(self, divisor: torch.Tensor | None) -> torch.Tensor | None:
        """Divide the gradients by a weight that was not known before, clip, and change the weights,
        or nothing where the gradients are not finite. Returns the norm of the gradients."""
        scaler, optimizer = self.precision.scaler, self.optimizer
        gradients = self.gradients()
        if divisor is not None:
            for kind in self._by_kind(gradients):
                torch._foreach_div_(kind, divisor.to(kind[0]))
        self.on_gradients()
        norm = None
        if scaler.is_enabled():
            if self.clip_norm is not None:
                scaler.unscale_(optimizer)
                norm = self.gradient_norm(gradients)
                self._clip(gradients, norm)
            self._step_scaled()
        elif not gradients:
            optimizer.step()
        else:
            norm = self.gradient_norm(gradients)
            self._step_if_finite(gradients, norm)
        # Not optimizer.zero_grad(): in a step of a few hundred microseconds it takes a tenth.
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
        return norm

    def _clip(self, gradients: list[torch.Tensor], norm: torch.Tensor) -> None:
        assert self.clip_norm is not None
        # As torch.nn.utils.clip_grad_norm_ does, which does not know about shards.
        factor = torch.clamp(self.clip_norm / (norm + _CLIP_EPSILON), max=1.0)
        for kind in self._by_kind(gradients):
            torch._foreach_mul_(kind, factor.to(kind[0]))

    def _step_if_finite(self, gradients: list[torch.Tensor], norm: torch.Tensor) -> None:
        optimizer: Any = self.optimizer
        if self._is_on_device is None:
            self._is_on_device = is_decided_on_device(optimizer, norm)
        if not self._is_on_device:
            value = norm.item()
            is_skipped = not math.isfinite(value)
            self._note(is_skipped)
            if not is_skipped:
                # Up to there `_clip` multiplies by 1.0: 13 us of a step that takes some hundred.
                if self.clip_norm is not None and value + _CLIP_EPSILON > self.clip_norm:
                    self._clip(gradients, norm)
                optimizer.step()
            return
        flag = flag_of(norm)
        self._note(flag)
        if self.clip_norm is not None:
            self._clip(gradients, norm)
        # What torch's own loss scaler hands to optimizers that know what to do with it.
        optimizer.grad_scale, optimizer.found_inf = None, flag
        try:
            optimizer.step()
        finally:
            del optimizer.grad_scale, optimizer.found_inf

    def _step_scaled(self) -> None:
        """The loss scaler looks for what is not finite itself, whatever the cause, and skips."""
        scaler, optimizer = self.precision.scaler, self.optimizer
        self.skips.last = False  # for followers: it calls the optimizer where nothing overflowed
        scaler.step(optimizer)
        found = list(scaler._found_inf_per_device(optimizer).values())
        flag: bool | torch.Tensor = sum(f.to(found[0].device) for f in found).clamp(max=1.0)
        if isinstance(flag, torch.Tensor) and flag.device.type == "cpu":
            flag = bool(flag.item())
        self._note(flag)
        scaler.update()

    def _note(self, flag: bool | torch.Tensor) -> None:
        """A step is skipped, or not: known here, or on the device."""
        self.skips.note(flag, is_captured=self._are_followers_apart)
        if self._statistics is not None and self._statistics.settle(self.skips.last):
            self.statistics_changed()

    def statistics_changed(self) -> None:
        """Called when the running statistics of BatchNorm were put back."""

    def follow_updates(self, hook: Callable[..., None]) -> None:
        """Call a hook after each update, with the arguments of torch's hooks after a step."""

        def follow(*given: Any) -> None:
            if not self._are_followers_apart:
                hook(*given)

        self._followers.append(hook)
        self.optimizer.register_step_post_hook(follow)

    @contextmanager
    def followers_apart(self) -> Iterator[None]:
        """Inside, an update calls no hooks: `updated` does, outside of what is captured."""
        self._are_followers_apart = True
        try:
            yield
        finally:
            self._are_followers_apart = False

    def updated(self) -> None:
        """Call the hooks of an update that was made with them apart."""
        if self.skips.last is True:
            return
        for hook in self._followers:
            hook(self.optimizer, (), {})

    def gradients(self) -> list[torch.Tensor]:
        """The gradients on this rank that the optimizer is going to use."""
        groups = self.optimizer.param_groups
        return [p.grad for group in groups for p in group["params"] if p.grad is not None]

    def _by_kind(self, gradients: list[torch.Tensor]) -> list[list[torch.Tensor]]:
        """Those of one type on one device together: torch's kernels for many tensors want that."""
        if self._is_one_kind:
            return [gradients] if gradients else []
        kinds: dict[Any, list[torch.Tensor]] = {}
        for tensor in gradients:
            kinds.setdefault((tensor.device, tensor.dtype), []).append(tensor)
        return list(kinds.values())

    def gradient_norm(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        """The norm of the gradients over all parameters of the model."""
        if not (self._is_one_kind and gradients):
            return torch.nn.utils.get_total_norm(gradients)
        # The same without looking for kinds of tensors in every step.
        norm: torch.Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        return norm

    # -- evaluation

    def evaluate(self, batch: Batch) -> Mapping[str, Any]:
        """The recipe's sums for a micro-batch of the test split."""
        sums: Mapping[str, Any] = self.bare_loss(batch, None, is_evaluation=True)
        return sums

    def samples(self) -> Sequence[Sample | Media]:
        """What the model makes of a few test samples; every rank runs the same forwards."""
        made: Sequence[Sample | Media] = self.bare_loss(None, None, is_evaluation=True)
        return made

    def after_evaluation(self) -> None:
        """Called while the weights that were evaluated are still in place."""

    # -- state

    def model_state(self) -> dict[str, Shard]:
        """What this rank holds of the model's state, under the model's own names."""
        state = self.model.state_dict(keep_vars=True)
        return {name: shard_of(t, is_first=self.process.is_first) for name, t in state.items()}

    def optimizer_state(self) -> OptimizerState:
        """What this rank holds of the optimizer's state."""
        return named_state(self.model, self.optimizer, is_first=self.process.is_first)

    def load_optimizer(self, file: TensorFile, numbers: Mapping[str, Any]) -> None:
        """Put what `optimizer_state` gave in place."""
        put_state(self.model, self.optimizer, file, numbers)

    def weights_changed(self) -> None:
        """Called after the shards of `model_state` were written to."""
