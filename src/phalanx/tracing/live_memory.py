"""Counts what is alive while operators run on tensors without values, and the operators."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from phalanx.planner.schema.footprint import CHANNELS_LAST, WITH_GRADIENTS, Line, upper_lines
from phalanx.planner.schema.operators import Operator
from phalanx.planner.time.compile_gain import as_compiled
from phalanx.tracing.kernels import Call, tensors_in
from phalanx.tracing.operators import SAMPLES, Growth, Recorder
from phalanx.tracing.workspaces import CONVOLUTIONS, workspace_of

_DEVICE = torch.ops.prim.device.default
_aten = torch.ops.aten
_PRODUCTS = {
    _aten.mm.default,
    _aten.addmm.default,
    _aten.bmm.default,
    _aten.baddbmm.default,
    _aten.convolution.default,
}
_FUSED_NAME = "addcmul"
_FUSED = torch.ops.aten.addcmul.default  # stands for any kernel that only reads and writes


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


class Live(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of storages that are alive, apart from the model's own, and operators."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        tensors = [*model.parameters(), *model.buffers()]
        self._ignored = {tensor.untyped_storage()._cdata for tensor in tensors}
        self._growth = Growth(model)
        self.recorder = Recorder(self._growth)
        self._compiled = Recorder(self._growth)
        self._has_narrow = any(p.element_size() == 2 for p in model.parameters())
        self._alive: dict[int, tuple[Any, int, bool]] = {}
        self._fixed = self._batched = self._gradients = 0
        self.fronts = {kind: (_Front(), _Front()) for kind in ("always", "turned", "exact")}
        """Without gradients of parameters, and with those that are there at each moment. The last
        two have only what convolutions take besides: turned around for tensor cores, and of exact
        products."""

    def lines(self, precision: str, ending: str = "") -> dict[str, list[Line]]:
        """Of activations, by the name of the precision with this ending, and with gradients."""
        name = precision if precision == "bf16" else "tf32"
        kinds = {name + ending: ["always", "turned"]}
        if precision != "bf16":
            kinds["fp32" + ending] = ["always", "turned", "exact"]
        if self.fronts["turned"][0].lines():
            kinds[name + ending + CHANNELS_LAST] = ["always"]
        return {
            named + last: upper_lines(
                line for kind in counted for line in self.fronts[kind][index].lines()
            )
            for named, counted in kinds.items()
            for index, last in enumerate(("", WITH_GRADIENTS))
        }

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
        if self._has_narrow and func in _PRODUCTS:
            _refuse_mixed(func, args)
        out = func(*args, **kwargs)
        call = self.recorder.record(func, args, kwargs, out)
        for tensor in tensors_in(out):
            self._count(tensor)
        if call is not None:
            self._work(call)
        return out

    def _work(self, call: Call) -> None:
        """What a library takes while it runs, and gives back."""
        kinds = {"always": False}
        if call.name in CONVOLUTIONS:
            kinds = {"turned": False, "exact": True}
        for kind, is_exact in kinds.items():
            fixed, of_samples = workspace_of(call, is_exact=is_exact)
            if fixed or of_samples:
                read = next(iter(call.tensors()), call.out[0])
                batched = of_samples if self._growth.grows(read.numel()) else 0
                self._moment(fixed + of_samples - batched, batched, kind)

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
        self._moment(0, 0, "always")

    def _moment(self, fixed: int, batched: int, kind: str) -> None:
        """What is there now, with so much besides."""
        fixed, batched = self._fixed + fixed, self._batched + batched
        for front, more in (
            (self.fronts[kind][0], 0),
            (self.fronts[kind][1], self._gradients),
        ):
            front.add(fixed + more, batched)

    def _free(self, key: int) -> None:
        _, size, is_batched = self._alive.pop(key)
        self._add(-size, is_batched)

    def _add(self, size: int, is_batched: bool) -> None:
        if is_batched:
            self._batched += size
        else:
            self._fixed += size


def _refuse_mixed(func: Any, args: tuple[Any, ...]) -> None:
    """As kernels do, but not their stand-ins for tensors without values."""
    kinds = {str(arg.dtype) for arg in args if isinstance(arg, Tensor)}
    if len(kinds) > 1:
        raise TypeError(f"{func} of tensors of different dtype: {', '.join(sorted(kinds))}")
