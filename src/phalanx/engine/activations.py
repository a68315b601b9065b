"""What a micro-batch takes besides the model: a forward and backward on tensors without values.

Fake tensors have shapes and no memory, so this needs no GPU, no time to speak of and no room for
the model. Every storage is counted from the operator that makes it to the moment it is freed: what
backward keeps, what is there for a moment, and with checkpointing what is recomputed. Gradients of
parameters are counted apart: in all micro-batches of a step but the first they are there already.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from phalanx.engine.as_cuda import HALF, as_cuda
from phalanx.engine.blocks import find_blocks
from phalanx.engine.blueprint import replace_tensors
from phalanx.engine.data import choose_fetch, map_tensors
from phalanx.engine.operators import SAMPLES, Growth, Recorder
from phalanx.engine.recompute import recompute_in_backward
from phalanx.planner.compiled import as_compiled
from phalanx.planner.footprint import COMPILED, WITH_GRADIENTS, Line, upper_lines
from phalanx.planner.operators import Operator
from phalanx.recipe.interface import Batch, Recipe, Term, leaves

_PRECISIONS = ("fp32", "bf16")
_DEVICE = torch.ops.prim.device.default
_FUSED_NAME = "addcmul"
_FUSED = torch.ops.aten.addcmul.default  # stands for any kernel that only reads and writes


@dataclass
class Activations:
    """Bytes by precision, each as lines over the samples of a micro-batch whose largest counts."""

    kept: dict[str, list[Line]] = field(default_factory=dict)
    checkpointed: dict[str, list[Line]] = field(default_factory=dict)
    """With the blocks recomputed in backward; empty without blocks."""
    operators: dict[str, list[Operator]] = field(default_factory=dict)
    checkpointed_operators: dict[str, list[Operator]] = field(default_factory=dict)
    """What is computed meanwhile."""
    input_bytes: int | None = None
    """Of one sample."""
    unknown: str | None = None
    """Why nothing is known."""
    compiled_unknown: str | None = None
    """Why nothing is known of compiled code."""


def trace_activations(
    recipe: Recipe, model: nn.Module, data: Any, *, is_compiled: bool = False
) -> Activations:
    """Activations of a recipe's loss, with `is_compiled` also as compiled code has them. The model
    is spoiled by it: its tensors become fake."""
    ids = np.arange(SAMPLES, dtype=np.int64) % len(data)
    batch, keys = choose_fetch(data)(ids, ids), torch.from_numpy(ids)
    tensors = [leaf for leaf in leaves(batch) if isinstance(leaf, Tensor)]
    found = Activations(input_bytes=sum(tensor.nbytes for tensor in tensors) // SAMPLES)
    # A tensor that is no buffer stays behind on another device: then the model is built once more.
    for is_built in (False, True):
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        try:
            with warnings.catch_warnings(action="ignore"):
                fake = _built_fake(recipe, mode) if is_built else _made_fake(model, mode)
                _measure(recipe, fake, batch, keys, mode, found)
                if is_compiled:
                    fake = _built_fake(recipe, mode)
                    _measure_compiled(recipe, fake, batch, keys, mode, found)
        except Exception as error:
            if found.unknown is None:
                text = " ".join(str(error).split())
                found.unknown = f"{type(error).__name__}: {text[:200]}"
        else:
            found.unknown = None
            return found
    return Activations(input_bytes=found.input_bytes, unknown=found.unknown)


def _measure(
    recipe: Recipe,
    model: nn.Module,
    batch: Batch,
    keys: Tensor,
    mode: FakeTensorMode,
    found: Activations,
) -> None:
    batch, keys = map_tensors(batch, mode.from_tensor), mode.from_tensor(keys)
    for name in _PRECISIONS:
        live = _run(recipe.loss, model, batch, keys, mode, is_autocast=name == "bf16")
        found.kept |= live.lines(name)
        found.operators[name] = live.operators()
    blocks = find_blocks(recipe, model)
    if blocks:
        recompute_in_backward(blocks, watch_buffers=False)
        for name in _PRECISIONS:
            live = _run(recipe.loss, model, batch, keys, mode, is_autocast=name == "bf16")
            found.checkpointed |= live.lines(name)
            found.checkpointed_operators[name] = live.operators()


def _measure_compiled(
    recipe: Recipe,
    model: nn.Module,
    batch: Batch,
    keys: Tensor,
    mode: FakeTensorMode,
    found: Activations,
) -> None:
    """The same with compiled code; where that cannot be told, the rest is known all the same."""
    from phalanx.engine.compiled import CompiledLoss  # its imports take seconds

    batch, keys = map_tensors(batch, mode.from_tensor), mode.from_tensor(keys)
    blocks = find_blocks(recipe, model)
    loss = CompiledLoss(recipe, blocks)

    def run(name: str) -> _Live:
        is_autocast = name == "bf16"
        return _run(loss, model, batch, keys, mode, is_autocast=is_autocast, watch=loss.on)

    try:
        for name in _PRECISIONS:
            live = run(name)
            found.kept |= live.lines(name + COMPILED)
            found.operators[name + COMPILED] = live.operators()
        if not blocks:
            return
        if loss.is_whole:
            loss.compile_blocks(blocks)
            for name in _PRECISIONS:  # blocks must be traced before checkpointing looks on
                run(name)
        recompute_in_backward(blocks, watch_buffers=False)
        for name in _PRECISIONS:
            live = run(name)
            found.checkpointed |= live.lines(name + COMPILED)
            found.checkpointed_operators[name + COMPILED] = live.operators()
    except Exception as error:
        text = " ".join(str(error).split())
        found.compiled_unknown = f"{type(error).__name__}: {text[:200]}"


def _run(
    loss: Callable[[nn.Module, Batch, Tensor], Mapping[str, Term]],
    model: nn.Module,
    batch: Batch,
    keys: Tensor,
    mode: FakeTensorMode,
    *,
    is_autocast: bool,
    watch: Callable[[_Live], None] = lambda live: None,
) -> _Live:
    live = _Live(model)
    watch(live)
    hooks = [
        parameter.register_post_accumulate_grad_hook(live.take_gradient)  # type: ignore[no-untyped-call]
        for parameter in model.parameters()
        if parameter.requires_grad
    ]
    with mode, live, as_cuda(is_autocast=is_autocast):
        with torch.autocast("cpu", HALF, enabled=is_autocast):
            sums = [term.sum for term in loss(model, batch, keys).values()]
            objective = sum(sums[1:], sums[0])
        del sums
        if objective.requires_grad:
            torch.autograd.backward(objective)
    for hook in hooks:
        hook.remove()
    return live


class _Front:
    """The moments that count for some size of a micro-batch: no other has more of both."""

    def __init__(self) -> None:
        self._moments: list[tuple[int, int]] = []

    def add(self, fixed: int, batched: int) -> None:
        if not any(fixed <= f and batched <= b for f, b in self._moments):
            self._moments = [(f, b) for f, b in self._moments if f > fixed or b > batched]
            self._moments.append((fixed, batched))

    def lines(self) -> list[Line]:
        return upper_lines(
            [Line(fixed, batched // SAMPLES) for fixed, batched in sorted(self._moments)]
        )


class _Live(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of storages that are alive, apart from the model's own, and operators."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        tensors = [*model.parameters(), *model.buffers()]
        self._ignored = {tensor.untyped_storage()._cdata for tensor in tensors}
        self._growth = Growth(model)
        self.recorder = Recorder(self._growth)
        self._compiled = Recorder(self._growth)
        self._alive: dict[int, tuple[Any, int, bool]] = {}
        self._fixed = self._batched = self._gradients = 0
        self.apart, self.together = _Front(), _Front()
        """Without gradients of parameters, and with those that are there at each moment."""

    def lines(self, precision: str) -> dict[str, list[Line]]:
        """Of activations, by the name of the precision and of it with gradients."""
        both = f"{precision}{WITH_GRADIENTS}"
        return {precision: self.apart.lines(), both: self.together.lines()}

    def operators(self) -> list[Operator]:
        """What was computed, compiled code last; the host does nothing for a view in it."""
        kernels = [operator for operator in self._compiled.operators() if operator.kind != "view"]
        named = (
            operator._replace(name="fused") if operator.name == _FUSED_NAME else operator
            for operator in kernels
        )
        return [*self.recorder.operators(), *map(as_compiled, named)]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Around compiled code; see `fused.Device`."""
        eager, self.recorder = self.recorder, self._compiled
        yield
        self.recorder = eager

    def launch(self, read: list[Tensor], written: list[Tensor]) -> None:
        self._compiled.record(_FUSED, (read,), {}, written)

    def allocate(self, like: Tensor) -> Tensor:
        return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype)

    def take_gradient(self, parameter: Tensor) -> None:
        """Move a gradient from what is alive to the gradients."""
        assert parameter.grad is not None
        self._gradients += parameter.grad.nbytes
        parameter.grad = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is _DEVICE and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # two calls of three: autograd asks before every operator
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        self.recorder.record(func, args, kwargs, out)
        for value in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(value, Tensor):
                self._count(value)
        return out

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._alive or key in self._ignored:
            return
        size = storage.nbytes()
        elements = size // tensor.element_size()
        is_batched = self._growth.grows(elements)
        self._alive[key] = (weakref.ref(storage, lambda _: self._free(key)), size, is_batched)
        self._add(size, is_batched)
        self.apart.add(self._fixed, self._batched)
        self.together.add(self._fixed + self._gradients, self._batched)

    def _free(self, key: int) -> None:
        _, size, is_batched = self._alive.pop(key)
        self._add(-size, is_batched)

    def _add(self, size: int, is_batched: bool) -> None:
        if is_batched:
            self._batched += size
        else:
            self._fixed += size


def _made_fake(model: nn.Module, mode: FakeTensorMode) -> nn.Module:
    """The model with a tensor without values in place of every parameter and buffer."""
    with mode:
        replace_tensors(model, lambda t: torch.empty(t.shape, dtype=t.dtype, device="cpu"))
    return model


def _built_fake(recipe: Recipe, mode: FakeTensorMode) -> nn.Module:
    with mode:
        return recipe.model()
