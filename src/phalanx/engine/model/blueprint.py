"""A model built without memory, and the record of how to fill it in part by part.

The recipe's model is built on torch's meta device, where tensors have shapes and no elements, while
every operation is written down. `fill` then runs the same operations for real, in the same order
and with the same random numbers, one tensor at a time: each rank keeps its shards of a tensor and
lets go of the rest. The weights are to the bit those of a model built in full, and a rank never
holds more than its shards and one whole tensor.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from phalanx.engine.model.shards import Shard
from phalanx.recipe.interface import Recipe


class _Ref(NamedTuple):
    """A tensor of the record: a view of a storage."""

    storage: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    is_whole: bool
    """Whether it covers all of the storage."""


@dataclass(frozen=True)
class _Operation:
    function: Any
    arguments: Any
    keywords: Any
    outputs: list[_Ref]

    @property
    def storages(self) -> set[int]:
        leaves = tree_flatten((self.arguments, self.keywords), is_leaf=_is_ref)[0]
        return {leaf.storage for leaf in [*leaves, *self.outputs] if isinstance(leaf, _Ref)}

    @property
    def overwrites(self) -> int | None:
        """The storage whose old elements this operation does not read."""
        target = self.arguments[0] if self.arguments else None
        if self.function in _OVERWRITING and isinstance(target, _Ref) and target.is_whole:
            return target.storage
        return None


_aten = torch.ops.aten
_OVERWRITING = {
    _aten.zero_.default,
    _aten.fill_.Scalar,
    _aten.fill_.Tensor,
    _aten.normal_.default,
    _aten.uniform_.default,
    _aten.copy_.default,
    _aten.random_.default,
}


def _is_ref(leaf: Any) -> bool:
    return isinstance(leaf, _Ref)


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down every operation on tensors without elements."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[_Operation] = []
        self._alive: list[Any] = []  # a storage that is freed could give its number to another
        self._numbers: dict[int, int] = {}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        outputs = [t for t in tree_flatten(result)[0] if isinstance(t, Tensor) and t.is_meta]
        known = len(self._numbers)
        references = [self.refer(output) for output in outputs]
        is_new = any(reference.storage >= known for reference in references)
        if is_new or function._schema.is_mutable:
            self.add(function, args, kwargs, references)
        return result

    def add(self, function: Any, args: Any, kwargs: Any, outputs: list[_Ref]) -> None:
        arguments, keywords = tree_map(self._keep, (args, kwargs))
        operation = _Operation(function, arguments, keywords, outputs)
        if operation.storages:
            self.operations.append(operation)

    def refer(self, tensor: Tensor) -> _Ref:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._numbers:
            self._numbers[storage._cdata] = len(self._numbers)
            self._alive.append(storage)
        return _Ref(
            self._numbers[storage._cdata],
            tuple(tensor.shape),
            tuple(tensor.stride()),
            int(tensor.storage_offset()),
            tensor.dtype,
            tensor.numel() * tensor.element_size() == storage.nbytes(),
        )

    def _keep(self, leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and leaf.is_meta:
            return self.refer(leaf)
        if isinstance(leaf, torch.device) and leaf.type == "meta":
            return torch.device("cpu")
        return leaf


class _Forgotten(TorchFunctionMode):
    """Catches what the meta device would forget: the numbers of `torch.tensor([...])`, and the
    functions of torch.nn.init that do nothing when they find a tensor without elements."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in (torch.tensor, torch.as_tensor) and kwargs.get("device") is None:
            return function(*args, **{**kwargs, "device": "cpu"}).to("meta")
        result = function(*args, **kwargs)
        if function == torch.Tensor.is_meta.__get__ and result:  # type: ignore[attr-defined]
            caller = sys._getframe(1)
            if caller.f_globals.get("__name__") == nn.init.__name__:
                skipped = getattr(nn.init, caller.f_code.co_name)
                names = inspect.signature(skipped).parameters
                arguments = {name: caller.f_locals[name] for name in names}
                self._recorder.add(skipped, (), arguments, [])
        return result


class Blueprint:
    """A model without elements, and how to make them."""

    def __init__(self, recipe: Recipe) -> None:
        recorder = _Recorder()
        with torch.device("meta"), _Forgotten(recorder), recorder:
            self.model = recipe.model()
        self._operations = recorder.operations
        tensors = dict(_named_tensors(self.model))
        self._places = {name: recorder.refer(t) for name, t in tensors.items() if t.is_meta}
        self._ready = {name: t.detach() for name, t in tensors.items() if not t.is_meta}

    @torch.no_grad()
    def make_room(self, device: torch.device) -> None:
        """Give memory to the model, which may have been sharded by now."""
        replace_tensors(self.model, lambda tensor: torch.empty_like(tensor, device=device))

    def fill(self, shards: Mapping[str, Shard]) -> None:
        """Make every element that this rank holds of these shards of parameters and buffers. The
        operations of all others run too: random numbers come in the order of the whole."""
        for name, tensor in self._ready.items():
            if name in shards:
                shards[name].copy_from(tensor)
        names: dict[int, list[str]] = {}
        for name, place in self._places.items():
            if name in shards:
                names.setdefault(place.storage, []).append(name)
        real: dict[int, torch.UntypedStorage] = {}
        for operation, idle, done in self._with_ends():
            _run(operation, real)
            for storage in done:
                for name in names.get(storage, ()):
                    shards[name].copy_from(_view(real, self._places[name]))
            for storage in (*idle, *done):
                del real[storage]

    def _with_ends(self) -> list[tuple[_Operation, set[int], set[int]]]:
        """Each operation with the storages that hold nothing of use after it until they are
        overwritten, and with those that no later operation touches."""
        ends = []
        following: dict[int, _Operation] = {}
        for operation in reversed(self._operations):
            idle = {
                storage
                for storage in operation.storages
                if storage in following and following[storage].overwrites == storage
            }
            ends.append((operation, idle, operation.storages - following.keys()))
            following |= dict.fromkeys(operation.storages, operation)
        return ends[::-1]


def replace_tensors(model: nn.Module, make: Callable[[Tensor], Tensor]) -> None:
    """Put another tensor in the place of every parameter and buffer. Unlike `to_empty` this keeps
    tied weights tied."""
    made: dict[int, Any] = {}

    def made_for(tensor: Tensor) -> Any:
        if id(tensor) not in made:
            new = make(tensor)
            is_weight = isinstance(tensor, nn.Parameter)
            made[id(tensor)] = nn.Parameter(new, tensor.requires_grad) if is_weight else new
        return made[id(tensor)]

    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            tensors.update({n: made_for(t) for n, t in tensors.items() if t is not None})


def _run(operation: _Operation, real: dict[int, torch.UntypedStorage]) -> None:
    """Run an operation for real and keep the storages it makes."""
    if operation.overwrites is not None and operation.overwrites not in real:
        target: _Ref = operation.arguments[0]
        real[target.storage] = torch.empty(target.shape, dtype=target.dtype).untyped_storage()

    def resolve(leaf: Any) -> Any:
        return _view(real, leaf) if isinstance(leaf, _Ref) else leaf

    arguments, keywords = tree_map(
        resolve, (operation.arguments, operation.keywords), is_leaf=_is_ref
    )
    with torch.no_grad():
        result = operation.function(*arguments, **keywords)
    if not operation.outputs:
        return
    tensors = [leaf for leaf in tree_flatten(result)[0] if isinstance(leaf, Tensor)]
    for reference, tensor in zip(operation.outputs, tensors, strict=True):
        real.setdefault(reference.storage, tensor.untyped_storage())


def _view(real: Mapping[int, torch.UntypedStorage], place: _Ref) -> Tensor:
    empty = torch.empty(0, dtype=place.dtype)
    return empty.set_(real[place.storage], place.offset, place.shape, place.stride)


def _named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()
