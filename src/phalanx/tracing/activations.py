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
from typing import TYPE_CHECKING, Any, NamedTuple

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

if TYPE_CHECKING:
    from phalanx.tracing.compiled import CompiledLoss

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

    def add(self, precision: str, live: Live, ending: str = "") -> None:
        """Take in what a run in a precision has shown."""
        self.kept |= live.lines(precision, ending)
        self.operators[precision + ending] = live.operators()

    def add_checkpointed(self, precision: str, live: Live, ending: str = "") -> None:
        """The same of a run whose blocks are recomputed."""
        self.checkpointed |= live.lines(precision, ending)
        self.checkpointed_operators[precision + ending] = live.operators()


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
    samples = _samples(data, ids)
    tensors = [leaf for leaf in leaves(samples.batch) if isinstance(leaf, Tensor)]
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
                found = _measure(_Trial(recipe, fake, samples, mode, is_frozen_narrow), eager)
                if compiled:
                    fake = _built_fake(recipe, mode)
                    trial = _Trial(recipe, fake, samples, mode, is_frozen_narrow)
                    _measure_compiled(trial, found, compiled)
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


class _Samples(NamedTuple):
    """A micro-batch and its keys."""

    batch: Batch
    keys: Tensor


def _samples(data: Any, ids: np.ndarray[Any, Any]) -> _Samples:
    return _Samples(choose_fetch(data)(ids, ids), torch.from_numpy(ids))


class _Trial:
    """A recipe's model and a micro-batch without values, whose loss is run again and again."""

    def __init__(
        self,
        recipe: Recipe,
        model: nn.Module,
        samples: _Samples,
        mode: FakeTensorMode,
        is_frozen_narrow: bool,
        answering: Answering | None = None,
    ) -> None:
        self.recipe = recipe
        self.model = model
        self.blocks = find_blocks(recipe, model)
        self.answering = answering
        self._batch = map_tensors(samples.batch, mode.from_tensor)
        self._keys = mode.from_tensor(samples.keys)
        self._mode = mode
        self._is_frozen_narrow = is_frozen_narrow
        self._narrowed: list[nn.Parameter] = []

    def run(self, precision: str, compiled: CompiledLoss | None = None) -> Live:
        """Run forward and backward, with weights in the types that a run has in a precision."""
        self._hold(precision)
        loss: Callable[..., Mapping[str, Term]] = compiled or self.recipe.loss
        live = Live(self.model)
        if compiled is not None:
            compiled.on(live)
        hooks = [
            parameter.register_post_accumulate_grad_hook(live.take_gradient)  # type: ignore[no-untyped-call]
            for parameter in self.model.parameters()
            if parameter.requires_grad
        ]
        answers = self.answering.from_the_start() if self.answering is not None else nullcontext()
        is_autocast = precision == "bf16"
        seed_globals(0)  # a loss that draws numbers takes the same path each time
        with self._mode, answers, live, as_cuda(is_autocast=is_autocast):
            with torch.autocast("cpu", HALF, enabled=is_autocast):
                sums = [term.sum for term in loss(self.model, self._batch, self._keys).values()]
                objective = sum(sums[1:], sums[0])
            del sums
            if objective.requires_grad:
                torch.autograd.backward(objective)
        for hook in hooks:
            hook.remove()
        return live

    def _hold(self, precision: str) -> None:
        with self._mode:
            if precision == "bf16" and self._is_frozen_narrow:
                self._narrowed += narrow_frozen(self.model, precision, HALF)
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
        try:
            with warnings.catch_warnings(action="ignore"):
                fake = _made_fake(model, mode)
                answering = Answering(answers, samples=samples, is_rounded=is_rounded)
                given = _samples(data, ids)
                trial = _Trial(recipe, fake, given, mode, is_frozen_narrow, answering)
                return _measure(trial, precisions)
        except Exception as error:
            failed = failed or error
            model = recipe.model()
    assert failed is not None
    raise failed


def _look(
    recipe: Recipe, model: nn.Module, data: Any, ids: np.ndarray[Any, Any], limit_s: float
) -> list[Answer]:
    seed_globals(0)
    return look_at_values(recipe, model, *_samples(data, ids), limit_s=limit_s)


def _measure(trial: _Trial, precisions: Sequence[str]) -> Activations:
    found = Activations()
    for name in precisions:
        found.add(name, trial.run(name))
    if trial.blocks:
        if trial.answering is not None:
            trial.answering.watch(trial.blocks)
        recompute_in_backward(trial.blocks, watch_buffers=False)
        for name in precisions:
            found.add_checkpointed(name, trial.run(name))
    return found


def _measure_compiled(trial: _Trial, found: Activations, precisions: Sequence[str]) -> None:
    """The same with compiled code; where that cannot be told, the rest is known all the same."""
    from phalanx.tracing.compiled import CompiledLoss  # its imports take seconds

    loss = CompiledLoss(trial.recipe, trial.model, trial.blocks)
    try:
        for name in precisions:
            found.add(name, trial.run(name, loss), COMPILED)
        loss.prepare_checkpointing(lambda: [trial.run(name, loss) for name in precisions])
        recompute_in_backward(trial.blocks, watch_buffers=False)
        for name in precisions if trial.blocks else ():
            found.add_checkpointed(name, trial.run(name, loss), COMPILED)
    except Exception as error:
        found.compiled_unknown = _short(error)


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
