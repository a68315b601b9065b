"""The parts of a model that `engine/fast/compile.py` compiles, on tensors without values: what
AOTAutograd's
partition of forward and backward keeps, and what the fused kernels make.

Each kind of part is traced once, in a fraction of a second, and then run for all that are alike.
Dynamo is left out: what it could not put into one graph is one graph here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch._inductor.lowering  # the partition asks it what can be fused
from torch import Tensor, nn
from torch._functorch.aot_autograd import aot_function
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_unflatten

from phalanx.engine.fast.compile import are_alike
from phalanx.engine.model.blocks import Block, find_beside
from phalanx.recipe.interface import Batch, Recipe, Term
from phalanx.tracing.aot_graphs import Device, FusedGraph


class CompiledLoss:
    """A recipe's loss over a model whose blocks, or all of it, are compiled."""

    def __init__(self, recipe: Recipe, model: nn.Module, blocks: list[Block]) -> None:
        self._recipe = recipe
        self._code = _Code()
        self._model = model
        self._found = blocks
        self._blocks: list[Block] = []
        if are_alike(blocks):
            self._compile_blocks()

    def _compile_blocks(self) -> None:
        for _, block in [*self._found, *find_beside(self._model, self._found)]:
            block.forward = _Part(self._code, block.forward, block)
        self._blocks = self._found

    def prepare_checkpointing(self, run: Callable[[], object]) -> None:
        """Blocks that are checkpointed are compiled one at a time, alike or not, and traced in a
        run of their own: the tracing must not be what checkpointing sees."""
        if self._found and not self._blocks:
            self._compile_blocks()
            run()

    def on(self, device: Device) -> None:
        """Count there from now on."""
        self._code.device = device

    def __call__(self, model: nn.Module, batch: Batch, keys: Tensor) -> Mapping[str, Term]:
        if not self._blocks:
            return self._compiled(functools.partial(self._recipe.loss, model), model, batch, keys)
        # Compiled code ends where the model is called, and begins again with its answer.
        try:
            return self._recipe.loss(_Asked(model), batch, keys)  # type: ignore[arg-type]
        except _AnswerError as answer:
            given = answer.value

        def rest(answer: Any, batch: Batch, keys: Tensor) -> Mapping[str, Term]:
            return self._recipe.loss(_Given(model, answer), batch, keys)  # type: ignore[arg-type]

        try:
            return self._compiled(rest, None, given, batch, keys)
        except _AskedAgainError:
            return self._recipe.loss(model, batch, keys)

    def _compiled(
        self, loss: Callable[..., Mapping[str, Term]], model: nn.Module | None, *given: Any
    ) -> Mapping[str, Term]:
        def sums(*given: Any) -> dict[str, Tensor]:
            return {name: term.sum for name, term in loss(*given).items()}

        found = _Part(self._code, sums, model)(*given)
        return {name: Term(total, 1) for name, total in found.items()}


class _Code:
    """What was compiled, by what it was compiled for."""

    def __init__(self) -> None:
        self.device: Device = _Nowhere()
        self.known: dict[Any, Callable[..., Any]] = {}

    def running(self) -> AbstractContextManager[Any]:
        return self.device.running()

    def launch(self, read: list[Tensor], written: list[Tensor]) -> None:
        self.device.launch(read, written)

    def allocate(self, like: Tensor) -> Tensor:
        return self.device.allocate(like)

    def compile(self, function: Callable[..., Any], values: list[Tensor]) -> Callable[..., Any]:
        compiled: Callable[..., Any] = aot_function(
            function,
            fw_compiler=lambda graph, _: FusedGraph(graph, self, may_donate=False),
            bw_compiler=lambda graph, _: FusedGraph(graph, self, may_donate=True),
            partition_fn=functools.partial(
                min_cut_rematerialization_partition, compiler="inductor"
            ),
            decompositions=select_decomp_table(),
        )
        with self._unwatched():
            compiled(*values)  # traces; what it gives is thrown away
        return compiled

    @contextmanager
    def _unwatched(self) -> Iterator[None]:
        device, self.device = self.device, _Nowhere()
        try:
            with _disable_current_modes():
                yield
        finally:
            self.device = device


class _Nowhere:
    """Counts nothing."""

    def running(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def launch(self, read: list[Tensor], written: list[Tensor]) -> None: ...

    def allocate(self, like: Tensor) -> Tensor:
        return like


class _Part:
    """A function compiled with the weights of a module, which become its inputs."""

    def __init__(self, code: _Code, forward: Callable[..., Any], module: nn.Module | None) -> None:
        self._code = code
        self._forward = forward
        self._module = module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self._forward(*args, **kwargs)
        state: dict[str, Tensor] = {}
        if self._module is not None:
            state = {**dict(self._module.named_parameters()), **dict(self._module.named_buffers())}
        leaves, structure = tree_flatten((args, kwargs))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

        def run(*values: Tensor) -> Any:
            weights = dict(zip(state, values, strict=False))
            filled = list(leaves)
            for i, value in zip(places, values[len(state) :], strict=True):
                filled[i] = value
            args, kwargs = tree_unflatten(filled, structure)
            module = self._module
            swapped = nullcontext() if module is None else _reparametrize_module(module, weights)
            with swapped:
                return self._forward(*args, **kwargs)

        values = [*state.values(), *(leaves[i] for i in places)]
        key = (
            type(self._module),
            getattr(self._forward, "__qualname__", None),
            tuple(state),
            str(structure),
            tuple(repr(leaf) for i, leaf in enumerate(leaves) if i not in places),
            tuple((t.shape, t.stride(), t.dtype, t.requires_grad) for t in values),
            torch.is_autocast_enabled("cpu"),
        )
        known = self._code.known
        if key not in known:
            known[key] = self._code.compile(run, values)
        return known[key](*values)


class _AnswerError(Exception):
    """The model's answer, on its way out of the recipe's loss."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class _AskedAgainError(Exception):
    """The loss calls the model more than once: its parts cannot be told apart."""


class _Stand:
    """Stands for the model in the recipe's loss."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


class _Asked(_Stand):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise _AnswerError(self._model(*args, **kwargs))


class _Given(_Stand):
    def __init__(self, model: nn.Module, answer: Any) -> None:
        super().__init__(model)
        self._answer = [answer]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._answer:
            raise _AskedAgainError
        return self._answer.pop()
