"""The values that a loss looks at, found by running it once on real samples.

A loss with `.item()`, boolean masks or `tolist()` in it cannot run on tensors without values. Its
forward is run once for real, on CPU, and whatever depends on values is written down; the run on
tensors without values then gets the same answers in the same order. That costs the weights in host
memory and the time of a forward: what backward would need is thrown away.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from phalanx.engine.model.blocks import Block
from phalanx.recipe.interface import Batch, Recipe
from phalanx.tracing.kernels import tensors_in
from phalanx.tracing.operators import SAMPLES

_READS = ("tolist", "numpy", "__array__")
"""Methods that hand values to Python without an operator."""
_TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_UNTAGGED = ("torchvision::nms",)


class Answer(NamedTuple):
    """What something that depends on values gave."""

    name: str
    value: Any
    """A number, a list or an array; of tensors their shapes, of an index by masks how many elements
    each of them picks."""


class NotRunError(Exception):
    """The run on real samples takes more than it may."""


class OtherPathError(Exception):
    """The run on tensors without values asks for something else than the real one did."""


def look_at_values(
    recipe: Recipe, model: nn.Module, batch: Batch, keys: Tensor, *, limit_s: float
) -> list[Answer]:
    """Run the loss of a real batch forward, and return all that depended on values."""
    noting = _Noting(time.perf_counter() + limit_s, limit_s)
    nothing = torch.autograd.graph.saved_tensors_hooks(lambda tensor: None, _never)
    with warnings.catch_warnings(action="ignore"), nothing, _Reads(noting.note_read), noting:
        recipe.loss(model, batch, keys)
    return noting.answers


def _never(nothing: None) -> Tensor:
    raise OtherPathError("the loss runs backward itself")


class _Noting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down what depends on values, until time is up."""

    def __init__(self, deadline: float, limit_s: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.answers: list[Answer] = []
        self._is_reading = False
        self._deadline, self._limit_s = deadline, limit_s

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if time.perf_counter() > self._deadline:
            raise NotRunError(f"a forward on real samples takes more than {self._limit_s:.0f} s")
        out = func(*args, **(kwargs or {}))
        if not self._is_reading and _depends_on_values(func, args):
            self.answers.append(Answer(str(func), _value(func, args, out)))
        return out

    def note_read(self, name: str, read: Callable[[], Any]) -> Any:
        self._is_reading = True  # operators inside belong to it
        try:
            out = read()
        finally:
            self._is_reading = False
        # An array shares memory with the tensor, which may change later.
        self.answers.append(Answer(name, out if name == "tolist" else out.copy()))
        return out


class _Reads(TorchFunctionMode):
    """Asks a function for the values that a method of `_READS` hands to Python; it is given the
    method's name and the call itself."""

    def __init__(self, ask: Callable[[str, Callable[[], Any]], Any]) -> None:
        super().__init__()
        self._ask = ask

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        call = partial(func, *args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        return self._ask(name, call) if name in _READS else call()


def _depends_on_values(func: Any, args: tuple[Any, ...]) -> bool:
    if func is torch.ops.aten.index.Tensor:
        return any(_is_mask(index) for index in args[1])
    return bool(_TAGS.intersection(func.tags)) or func._schema.name in _UNTAGGED


def _is_mask(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)


def _value(func: Any, args: tuple[Any, ...], out: Any) -> Any:
    if func is torch.ops.aten.index.Tensor:
        return [int(index.count_nonzero()) if _is_mask(index) else None for index in args[1]]
    made = tensors_in(out)
    return [(tuple(tensor.shape), tensor.dtype) for tensor in made] if made else out


class Answering(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Gives the answers of a real run, of `samples` samples, on tensors without values.

    With `is_rounded`, how many elements of a batch a mask picks becomes a multiple of its samples:
    what is made of them is then known to grow with the batch."""

    def __init__(self, answers: list[Answer], *, samples: int, is_rounded: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._answers = answers
        self._samples = samples
        self._is_rounded = is_rounded
        self.position = 0

    @contextmanager
    def from_the_start(self) -> Iterator[None]:
        """Around one run."""
        self.position = 0
        # FakeTensor has a `tolist` of its own, which modes do not see (torch 2.10 to 2.13,
        # https://github.com/pytorch/pytorch/blob/v2.10.0/torch/_subclasses/fake_tensor.py).
        listing = mock.patch.object(FakeTensor, "tolist", lambda _: self.next("tolist"))
        with listing, _Reads(self._give_read), self:
            yield

    def _give_read(self, name: str, read: Callable[[], Any]) -> Any:
        value = self.next(name)
        return value if name == "tolist" else value.copy()

    def next(self, name: str) -> Any:
        """What the real run got here."""
        if self.position >= len(self._answers):
            raise OtherPathError(f"{name} beyond the {len(self._answers)} values of the real run")
        answer = self._answers[self.position]
        if answer.name != name:
            raise OtherPathError(f"{name} where the real run had {answer.name}")
        self.position += 1
        return answer.value

    def watch(self, blocks: list[Block]) -> None:
        """Let a block that runs again in backward have the answers of its forward again. Before the
        blocks are made to do so."""
        for _, block in blocks:
            block.forward = _rewinding(block.forward, self)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not _depends_on_values(func, args):
            return func(*args, **kwargs)
        value = self.next(str(func))
        if func is torch.ops.aten.index.Tensor:
            return self._index(func, args, value)
        if torch.Tag.data_dependent_output in func.tags:
            return value
        first = next(arg for arg in args if isinstance(arg, Tensor))
        made = [self._empty(first, shape, dtype) for shape, dtype in value]
        return made[0] if len(func._schema.returns) == 1 else tuple(made)

    def _index(self, func: Any, args: tuple[Any, ...], counts: list[int | None]) -> Tensor:
        """With as many numbers as a mask picks in its place, one list for each dimension it has."""
        indices: list[Any] = []
        for index, count in zip(args[1], counts, strict=True):
            if count is None:
                indices.append(index)
                continue
            picked = self._length(count, index)
            indices += [index.new_empty(picked, dtype=torch.int64) for _ in range(index.dim())]
        return func(args[0], indices)  # type: ignore[no-any-return]

    def _empty(self, source: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if dtype.is_floating_point and source.is_floating_point():
            dtype = source.dtype  # autocast may have made another one of it
        if shape and shape != source.shape:
            shape = (self._length(shape[0], source), *shape[1:])
        return source.new_empty(shape, dtype=dtype)

    def _length(self, picked: int, source: Tensor) -> int:
        if picked == 0 or source.numel() % SAMPLES:
            return picked
        if not self._is_rounded:
            return picked * SAMPLES // self._samples
        return SAMPLES * max(1, round(picked / self._samples))


def _rewinding(forward: Any, answering: Answering) -> Any:
    began: list[int] = []

    def run(*args: Any, **kwargs: Any) -> Any:
        if torch._C._current_graph_task_id() == -1:
            began.append(answering.position)
            return forward(*args, **kwargs)
        here, answering.position = answering.position, began.pop()  # the last one first
        try:
            return forward(*args, **kwargs)
        finally:
            answering.position = here

    return run
