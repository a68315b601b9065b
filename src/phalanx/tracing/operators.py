"""The operators of a step, recorded as they are called on tensors without values.

What CUDA would run is counted, not what stands in for it on CPU: a convolution's backward is two
products, its bias a pass of its own, a recurrence one call per layer and direction. Not counted is
the addition of a gradient to one that is there already: the first micro-batch of a step keeps what
backward made, only the later ones add, and the plan knows how many there are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from phalanx.planner.schema.footprint import Line
from phalanx.planner.schema.operators import Operator, Phase, Shape
from phalanx.tracing.kernels import Call, Dimensions, Kernel, kernels_of, tensors_in

SAMPLES = 23
"""In the batch of a trace. A prime that divides few sizes of models: a tensor whose number of
elements it divides belongs to the batch, any other one does not grow with it."""


class Growth:
    """Tells what grows with the batch from what belongs to the model."""

    def __init__(self, model: nn.Module) -> None:
        tensors = [*model.parameters(), *model.buffers()]
        self._elements = {tensor.numel() for tensor in tensors}
        self._lengths = {length for parameter in model.parameters() for length in parameter.shape}

    def grows(self, elements: int) -> bool:
        """Whether a tensor of so many elements does. A parameter in another dtype, and its
        gradient, have as many as the parameter."""
        return elements % SAMPLES == 0 and elements not in self._elements

    def line(self, tensors: Iterable[Tensor]) -> Line:
        """Bytes of these tensors; what is repeated by a stride of 0 counts once."""
        fixed = batched = 0
        for tensor in tensors:
            elements = tensor.numel()
            size = elements * tensor.element_size()
            if 0 in tensor.stride():
                lengths = zip(tensor.shape, tensor.stride(), strict=True)
                size = tensor.element_size() * math.prod(n for n, stride in lengths if stride)
                elements = size // tensor.element_size()
            if self.grows(elements):
                batched += size
            else:
                fixed += size
        return Line(fixed, batched // SAMPLES)

    def shape(self, dimensions: Dimensions, *, is_batched: bool) -> Shape:
        """A product's dimensions; one of them grows where the work does, since that is linear."""
        divisible = [i for i, length in enumerate(dimensions) if length % SAMPLES == 0]
        own = [i for i in divisible if dimensions[i] not in self._lengths]
        exact = [i for i in own if dimensions[i] == SAMPLES]
        growing = next(iter(exact or own or divisible), None) if is_batched else None
        return Shape(
            *(
                Line(0, length // SAMPLES) if i == growing else Line(length, 0)
                for i, length in enumerate(dimensions)
            )
        )


class Recorder:
    """Counts the kernels that calls of torch's operators run, alike ones together."""

    def __init__(self, growth: Growth) -> None:
        self._growth = growth
        self._times: dict[Operator, int] = {}
        self._names: dict[Operator, str] = {}

    def record(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> Call | None:
        """Count a call that returned `out`; what returns no tensor is a question of the host."""
        outs = tensors_in(out)
        if not outs:
            return None
        # A forward that is run again in backward is time of backward.
        phase: Phase = "forward" if torch._C._current_graph_task_id() == -1 else "backward"
        call = Call(func, args, kwargs, outs)
        for kernel in kernels_of(call):
            self._add(kernel, phase)
        return call

    def _add(self, kernel: Kernel, phase: Phase) -> None:
        operator = self._operator(kernel, phase)
        if kernel.kind in ("memory", "copy", "reduction", "view"):
            # What they are called changes nothing in what they take: alike by size alone.
            operator = operator._replace(name="")
        self._times[operator] = self._times.get(operator, 0) + 1
        self._names.setdefault(operator, kernel.name)

    def _operator(self, kernel: Kernel, phase: Phase) -> Operator:
        if kernel.kind == "view":
            return Operator("view", phase, "fp32", 1, Line(0, 0), Line(0, 0))
        is_batched = any(self._growth.grows(tensor.numel()) for tensor in kernel.touched)
        flops, shape = kernel.flops, None
        if kernel.dimensions is not None:
            shape = self._growth.shape(kernel.dimensions, is_batched=is_batched)
            flops = flops or 2 * math.prod(kernel.dimensions)
        work = Line(0, flops // SAMPLES) if is_batched else Line(flops, 0)
        size = self._growth.line(kernel.touched)
        return Operator(
            kernel.kind, phase, _dtype(kernel.touched), 1, work, size, shape, kernel.name
        )

    def operators(self) -> list[Operator]:
        """What was recorded, in the order of first calls."""
        return [
            operator._replace(times=times, name=self._names[operator])
            for operator, times in self._times.items()
        ]


def _dtype(tensors: list[Tensor]) -> str:
    kinds = {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
    if torch.float64 in kinds:
        return "fp64"
    return "half" if any(kind.itemsize == 2 for kind in kinds) else "fp32"
