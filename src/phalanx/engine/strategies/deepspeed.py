"""DeepSpeed's ZeRO: optimizer state (stage 1), gradients (2) and weights (3) are spread over the
ranks, and may be kept in host memory.

DeepSpeed owns forward hooks, reduction and update; the optimizer is torch's own, over the fp32
weights that ZeRO keeps. Its checkpoints, its schedulers and its compiled operators are not used.
In bf16 and fp16 the model's own parameters are of that type, beside the fp32 weights.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from phalanx.engine.data.micro_batches import MicroBatch
from phalanx.engine.model.norms import widen_norms
from phalanx.engine.model.shards import Shard
from phalanx.engine.model.tensor_file import TensorFile
from phalanx.engine.process.group import Process
from phalanx.engine.strategies.base import RunBackward
from phalanx.engine.strategies.deepspeed_library import (
    LossScale,
    import_deepspeed,
    on_device,
    throwing_away,
)
from phalanx.engine.strategies.optimizer_state import OptimizerState
from phalanx.engine.strategies.optimizers import Optimizer
from phalanx.engine.strategies.precision import Precision
from phalanx.engine.strategies.together import Together, unused_findings
from phalanx.engine.strategies.zero_shards import ZeroPartitions
from phalanx.errors import Finding, UserError
from phalanx.job.strategies import facts_of
from phalanx.recipe.interface import Recipe


class Deepspeed(Together):
    """ZeRO partitions with averaged gradients.

    ZeRO divides the sum of the gradients by the number of ranks; the loss is scaled up by it
    beforehand, as for DDP."""

    facts = facts_of("deepspeed")

    def __init__(
        self, recipe: Recipe, model: nn.Module, process: Process, settings: dict[str, Any]
    ) -> None:
        """The model is in host memory; `settings` are DeepSpeed's own."""
        super().__init__(recipe, model, process)
        self._settings = settings
        self._stage: int = settings["zero_optimization"]["stage"]
        self._is_managed: bool = settings["managed_gradient_accumulation"]
        self._after_update: list[Callable[..., None]] = []
        self._unused: dict[str, nn.Parameter] = {}
        """Parameters that the pass before the first step did not reach."""
        self._reached: set[str] = set()
        """Those of them that this step has reached."""
        self._untouched: set[str] = set()
        """Those of them that no step has reached: they have no optimizer state."""
        self._kept: list[tuple[Tensor, Tensor]] = []
        self._is_settling = False

    @property
    def gradient_scale(self) -> float:
        return float(self.process.world)

    def adopt(self, optimizer: Optimizer, precision: Precision, clip_norm: float | None) -> None:
        super().adopt(optimizer, precision, clip_norm)
        self.bare_loss.autocast = precision.autocast  # DeepSpeed turns it off on CUDA
        deepspeed = import_deepspeed(self.process)
        if precision.half is not None:
            widen_norms(self.model)
        first = {n: p.detach() for n, p in self.model.named_parameters() if p.requires_grad}
        try:
            with on_device(self.process):
                self._initialize(deepspeed)
        except (AssertionError, TypeError, ValueError) as error:
            raise UserError(self._refusal(error)) from error
        self.loss_module = self._engine
        self._zero = self._engine.optimizer
        self._partitions = ZeroPartitions(
            self.model, self._zero, optimizer, self.process, self._stage
        )
        # ZeRO has rounded the weights to the precision of the run on its way to fp32.
        for name, shard in self._partitions.model_state().items():
            if name in first:
                shard.copy_from(first[name])
        self.weights_changed()
        optimizer.register_step_post_hook(self._put_back_unused)
        if precision.scaler.is_enabled():
            precision.scaler = LossScale(self._zero.loss_scaler)

    def _initialize(self, deepspeed: Any) -> None:
        if self._stage == 3:
            self._cut(deepspeed)
        self._engine, *_ = deepspeed.initialize(
            model=self.bare_loss,
            optimizer=self.optimizer,
            config=self._settings,
            dist_init_required=False,
        )

    def _refusal(self, error: Exception) -> Finding:
        return Finding(
            slug="deepspeed-settings",
            what=f"DeepSpeed does not take its settings: {' '.join(str(error).split())[:300]}",
            why=f"{type(error).__name__}; it was given {json.dumps(self._settings)}",
            fix="mend or remove that key in `deepspeed.config`",
        )

    def _cut(self, deepspeed: Any) -> None:
        """Hand the parameters to ZeRO one by one, so that no device ever holds the whole model."""
        if self.precision.half is not None:
            for parameter in self.model.parameters():
                parameter.data = parameter.data.to(self.precision.half)
        deepspeed.zero.Init(module=self.bare_loss, config_dict_or_path=self._settings)
        for module in self.model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                module._buffers[name] = buffer.to(self.process.device)

    def settle(self, micro_batch: MicroBatch, run_backward: RunBackward) -> list[Finding]:
        """One pass that is thrown away, to see which buffers forward changes and which parameters
        get no gradient."""
        learning = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        with self._buffers.untouched() as before:
            with _watched(learning, self._reached), throwing_away(self._zero):
                self._is_settling = True
                self.before_step(1)
                run_backward(micro_batch)
                self._engine.step()
                self._is_settling = False
            self._partitions.clear_gradients()
            findings = self._buffers.notice_changes(before)
        self._unused = self._reached_nowhere(learning)
        self._untouched = set(self._unused)
        self._reached.clear()
        unused = unused_findings(
            self._unused,
            "they stay as they are in steps that do not reach them, and take room in ZeRO's "
            "optimizer state",
        )
        return [*findings, *unused, *self._frozen_findings()]

    def _reached_nowhere(self, learning: dict[str, nn.Parameter]) -> dict[str, nn.Parameter]:
        """Parameters that got no gradient on any rank: all ranks must write the same checkpoint."""
        counts = self.process.count(name in self._reached for name in learning)
        counted = zip(learning.items(), counts, strict=True)
        return {name: parameter for (name, parameter), count in counted if not count}

    def resume(self) -> None:
        super().resume()
        _watch(self._unused, self._reached)

    # -- a step

    def before_step(self, num_slots: int) -> None:
        self._zero.override_loss_scale(self._zero.loss_scaler.cur_scale)

    def hold_gradients(self) -> AbstractContextManager[Any]:
        return self._not_last() if self._is_managed else nullcontext()

    @contextmanager
    def _not_last(self) -> Iterator[None]:
        self._engine.set_gradient_accumulation_boundary(False)
        yield
        self._engine.set_gradient_accumulation_boundary(True)

    @property
    def takes_gradient(self) -> bool:
        return False

    def backward(self, objective: Tensor, gradient: Tensor | None = None) -> None:
        if self._is_settling:
            # ZeRO throws a step away whose gradients are not finite, and cleans up after it.
            objective = objective * float("nan")
        elif gradient is not None:
            objective = objective * gradient  # which is where its backward then begins
        self._engine.backward(objective, scale_wrt_gas=False)

    def update(self, divisor: Tensor | None) -> Tensor | None:
        if divisor is not None:
            # ZeRO divides gradients by the loss scale before it clips them.
            self._zero.override_loss_scale(self._zero.loss_scale * float(divisor))
        shards = [self._partitions.pieces[n].weights for n in self._unused.keys() - self._reached]
        self._kept = [(shard.tensor, shard.tensor.clone()) for shard in shards]
        self._engine.step()
        self._partitions.clear_gradients()
        self._untouched -= self._reached
        self._reached.clear()
        self._note(bool(self._zero.overflow))
        if not self._zero.overflow:
            for hook in self._after_update:
                hook(self.optimizer, (), {})
        if self.clip_norm is None:
            return None
        return torch.as_tensor(self._engine.get_global_grad_norm())

    def follow_updates(self, hook: Callable[..., None]) -> None:
        # Not the optimizer's own hook: ZeRO calls it once for each of its parts.
        self._after_update.append(hook)

    @torch.no_grad()
    def _put_back_unused(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Undo the decay of parameters without a gradient, whom ZeRO gives one of zeros."""
        for weight, value in self._kept:
            weight.copy_(value)

    # -- state

    def model_state(self) -> dict[str, Shard]:
        if self.loss_module is self.bare_loss:  # not adopted yet: the weights of `init_from`
            return super().model_state()
        return self._partitions.model_state()

    def optimizer_state(self) -> OptimizerState:
        return self._partitions.optimizer_state(without=self._untouched)

    def load_optimizer(self, file: TensorFile, numbers: Mapping[str, Any]) -> None:
        self._partitions.load_optimizer(file, numbers)
        self._untouched -= {full.rpartition(":")[0] for full in (*file.names, *numbers)}

    def weights_changed(self) -> None:
        if self.loss_module is not self.bare_loss:
            self._partitions.push()

    def _frozen_findings(self) -> list[Finding]:
        frozen = [p for p in self.model.parameters() if not p.requires_grad]
        if not frozen or self.precision.half is None:
            return []
        return [
            Finding(
                slug="deepspeed-frozen",
                what=f"{len(frozen)} frozen parameters are kept in {self.precision.name}",
                why="DeepSpeed keeps fp32 weights of what learns only; checkpoints hold the frozen "
                f"ones in {self.precision.name} too",
                fix="nothing, or precision=fp32",
                severity="note",
            )
        ]


def _watch(parameters: dict[str, nn.Parameter], reached: set[str]) -> list[Any]:
    """Put the names of parameters that get a gradient into `reached`."""

    def note(name: str) -> Callable[[Tensor], None]:
        return lambda _: reached.add(name)

    return [
        parameter.register_post_accumulate_grad_hook(note(name))  # type: ignore[no-untyped-call]
        for name, parameter in parameters.items()
    ]


@contextmanager
def _watched(parameters: dict[str, nn.Parameter], reached: set[str]) -> Iterator[None]:
    hooks = _watch(parameters, reached)
    yield
    for hook in hooks:
        hook.remove()
