"""What a micro-batch takes besides the model: a forward and backward on tensors without values.

Fake tensors have shapes and no memory, so this needs no GPU, no time to speak of and no room for
the model. Every storage is counted from the operator that makes it to the moment it is freed: what
backward keeps, what is there for a moment, and with checkpointing what is recomputed. Gradients of
parameters are counted apart: in all micro-batches of a step but the first they are there already.
A loss that looks at values gets them from one forward on real samples (`values`).
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from phalanx.engine.data.micro_batches import choose_fetch, map_tensors, seed_globals
from phalanx.engine.model.blocks import find_blocks
from phalanx.engine.model.blueprint import replace_tensors
from phalanx.engine.model.frozen import narrow_frozen
from phalanx.engine.model.recompute import recompute_in_backward
from phalanx.errors import format_bytes
from phalanx.machine.host import probe_cgroup, probe_memory
from phalanx.planner.schema.footprint import COMPILED, Line
from phalanx.planner.schema.operators import Operator
from phalanx.planner.schema.trace import EAGER
from phalanx.recipe.interface import Batch, Recipe, Term, leaves
from phalanx.tracing.as_cuda import HALF, as_cuda
from phalanx.tracing.live_memory import Live
from phalanx.tracing.loss_values import Answer, Answering, NotRunError, look_at_values
from phalanx.tracing.operators import SAMPLES

_REAL_PARAMETERS = 2_000_000_000  # more are not built for a run on real samples
_REAL_SHARE = 0.25  # of the host memory that is free
_REAL_S = 30.0
_FEW = 2  # samples of a first run, which tells how long all would take; BatchNorm takes no fewer


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
    sampled: str | None = None
    """Why a forward on real samples was needed."""
    unknown: str | None = None
    """Why nothing is known."""
    compiled_unknown: str | None = None
    """Why nothing is known of compiled code."""


def trace_activations(
    recipe: Recipe,
    model: nn.Module,
    data: Any,
    precisions: Sequence[str] = EAGER,
    *,
    is_frozen_narrow: bool = True,
) -> Activations:
    """Activations of a recipe's loss in some precisions, those that end in `+compiled` as compiled
    code has them; in bf16 with frozen weights in 16 bits, as a run has them. The model is spoiled
    by it: its tensors become fake."""
    eager = [name for name in precisions if not name.endswith(COMPILED)]
    compiled = [name.removesuffix(COMPILED) for name in precisions if name.endswith(COMPILED)]
    ids = np.arange(SAMPLES, dtype=np.int64) % len(data)
    batch, keys = choose_fetch(data)(ids, ids), torch.from_numpy(ids)
    tensors = [leaf for leaf in leaves(batch) if isinstance(leaf, Tensor)]
    input_bytes = sum(tensor.nbytes for tensor in tensors) // SAMPLES
    needed = sum(p.nbytes for p in model.parameters()) + SAMPLES * input_bytes
    count = sum(p.numel() for p in model.parameters())
    unknown = None
    # A tensor that is no buffer stays behind on another device: then the model is built once more.
    for is_built in (False, True):
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        try:
            with warnings.catch_warnings(action="ignore"):
                fake = _built_fake(recipe, mode) if is_built else _made_fake(model, mode)
                holding = _Holding(fake, mode, is_frozen_narrow)
                found = _measure(recipe, fake, batch, keys, mode, holding, eager)
                if compiled:
                    fake = _built_fake(recipe, mode)
                    holding = _Holding(fake, mode, is_frozen_narrow)
                    _measure_compiled(recipe, fake, batch, keys, mode, holding, found, compiled)
        except Exception as error:
            unknown = unknown or _short(error)
        else:
            found.input_bytes = input_bytes
            return found
    found = Activations(unknown=unknown)
    try:
        _refuse_large(count, needed)
        found = _with_values(recipe, data, ids, is_frozen_narrow, eager)
        found.sampled = unknown
        found.compiled_unknown = unknown
    except Exception as error:
        text = str(error) if isinstance(error, NotRunError) else _short(error)
        if text != unknown:
            found.unknown = f"{unknown}; on real samples: {text}"
    found.input_bytes = input_bytes
    return found


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _refuse_large(count: int, needed: int) -> None:
    there = int(_REAL_SHARE * probe_memory(probe_cgroup()).available_bytes)
    if count > _REAL_PARAMETERS or needed > there:
        raise NotRunError(
            f"not tried, {count:,} parameters and {SAMPLES} samples are {format_bytes(needed)} in "
            f"host memory; up to {_REAL_PARAMETERS:,} and {format_bytes(there)} are"
        )


class _Holding:
    """The weights of a model without values, in the types that a run has in each precision."""

    def __init__(self, model: nn.Module, mode: FakeTensorMode, is_frozen_narrow: bool) -> None:
        self._model = model
        self._mode = mode
        self._is_used = is_frozen_narrow
        self._narrowed: list[nn.Parameter] = []

    def switch(self, precision: str) -> None:
        with self._mode:
            if precision == "bf16" and self._is_used:
                self._narrowed += narrow_frozen(self._model, precision, HALF)
            while precision != "bf16" and self._narrowed:
                parameter = self._narrowed.pop()
                parameter.data = torch.empty_like(parameter, dtype=torch.float32)


def _with_values(
    recipe: Recipe,
    data: Any,
    ids: np.ndarray[Any, Any],
    is_frozen_narrow: bool,
    precisions: Sequence[str],
) -> Activations:
    """On tensors without values, with the answers that real ones gave."""
    seed_globals(0)
    model = recipe.model()
    started = time.perf_counter()
    answers, samples = _look(recipe, model, data, ids[:_FEW], _REAL_S), _FEW
    if SAMPLES / _FEW * (time.perf_counter() - started) < _REAL_S:
        # The same number of samples as in the trace: a loss may look at each of them.
        answers, samples = _look(recipe, model, data, ids, 2 * _REAL_S), SAMPLES
    failed: Exception | None = None
    for is_rounded in (True, False):
        # The loss may compare how many a mask picked with a number it has from elsewhere.
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        batch, keys = choose_fetch(data)(ids, ids), torch.from_numpy(ids)
        try:
            with warnings.catch_warnings(action="ignore"):
                fake = _made_fake(model, mode)
                answering = Answering(answers, samples=samples, is_rounded=is_rounded)
                holding = _Holding(fake, mode, is_frozen_narrow)
                return _measure(recipe, fake, batch, keys, mode, holding, precisions, answering)
        except Exception as error:
            failed = failed or error
            model = recipe.model()
    assert failed is not None
    raise failed


def _look(
    recipe: Recipe, model: nn.Module, data: Any, ids: np.ndarray[Any, Any], limit_s: float
) -> list[Answer]:
    seed_globals(0)
    batch, keys = choose_fetch(data)(ids, ids), torch.from_numpy(ids)
    return look_at_values(recipe, model, batch, keys, limit_s=limit_s)


def _measure(
    recipe: Recipe,
    model: nn.Module,
    batch: Batch,
    keys: Tensor,
    mode: FakeTensorMode,
    holding: _Holding,
    precisions: Sequence[str],
    answering: Answering | None = None,
) -> Activations:
    found = Activations()
    batch, keys = map_tensors(batch, mode.from_tensor), mode.from_tensor(keys)
    for name in precisions:
        holding.switch(name)
        live = _run(recipe.loss, model, batch, keys, mode, answering, is_autocast=name == "bf16")
        found.kept |= live.lines(name)
        found.operators[name] = live.operators()
    blocks = find_blocks(recipe, model)
    if blocks:
        if answering is not None:
            answering.watch(blocks)
        recompute_in_backward(blocks, watch_buffers=False)
        for name in precisions:
            holding.switch(name)
            live = _run(
                recipe.loss, model, batch, keys, mode, answering, is_autocast=name == "bf16"
            )
            found.checkpointed |= live.lines(name)
            found.checkpointed_operators[name] = live.operators()
    return found


def _measure_compiled(
    recipe: Recipe,
    model: nn.Module,
    batch: Batch,
    keys: Tensor,
    mode: FakeTensorMode,
    holding: _Holding,
    found: Activations,
    precisions: Sequence[str],
) -> None:
    """The same with compiled code; where that cannot be told, the rest is known all the same."""
    from phalanx.tracing.compiled import CompiledLoss  # its imports take seconds

    batch, keys = map_tensors(batch, mode.from_tensor), mode.from_tensor(keys)
    blocks = find_blocks(recipe, model)
    loss = CompiledLoss(recipe, model, blocks)

    def run(name: str) -> Live:
        is_half = name == "bf16"
        holding.switch(name)
        return _run(loss, model, batch, keys, mode, None, is_autocast=is_half, watch=loss.on)

    try:
        for name in precisions:
            live = run(name)
            found.kept |= live.lines(name, COMPILED)
            found.operators[name + COMPILED] = live.operators()
        loss.prepare_checkpointing(lambda: [run(name) for name in precisions])
        recompute_in_backward(blocks, watch_buffers=False)
        for name in precisions if blocks else ():
            live = run(name)
            found.checkpointed |= live.lines(name, COMPILED)
            found.checkpointed_operators[name + COMPILED] = live.operators()
    except Exception as error:
        found.compiled_unknown = _short(error)


def _run(
    loss: Callable[[nn.Module, Batch, Tensor], Mapping[str, Term]],
    model: nn.Module,
    batch: Batch,
    keys: Tensor,
    mode: FakeTensorMode,
    answering: Answering | None,
    *,
    is_autocast: bool,
    watch: Callable[[Live], None] = lambda live: None,
) -> Live:
    live = Live(model)
    watch(live)
    hooks = [
        parameter.register_post_accumulate_grad_hook(live.take_gradient)  # type: ignore[no-untyped-call]
        for parameter in model.parameters()
        if parameter.requires_grad
    ]
    answers = answering.from_the_start() if answering is not None else nullcontext()
    seed_globals(0)  # a loss that draws numbers takes the same path each time
    with mode, answers, live, as_cuda(is_autocast=is_autocast):
        with torch.autocast("cpu", HALF, enabled=is_autocast):
            sums = [term.sum for term in loss(model, batch, keys).values()]
            objective = sum(sums[1:], sums[0])
        del sums
        if objective.requires_grad:
            torch.autograd.backward(objective)
    for hook in hooks:
        hook.remove()
    return live


def _made_fake(model: nn.Module, mode: FakeTensorMode) -> nn.Module:
    """The model with a tensor without values in place of every parameter and buffer."""
    with mode:
        replace_tensors(model, lambda t: torch.empty(t.shape, dtype=t.dtype, device="cpu"))
    return model


def _built_fake(recipe: Recipe, mode: FakeTensorMode) -> nn.Module:
    try:
        with mode:
            return recipe.model()
    except RuntimeError:  # what moves layers while it builds, as peft does, cannot move these
        with torch.device("meta"):
            model = recipe.model()
        return _made_fake(model, mode)
