"""Recurrent layers as cuDNN runs them: one operator for all their steps.

On CPU torch spells them out, step by step, which takes neither the memory nor the operators that
CUDA takes, and long to trace. Tensors without values only: nothing is computed here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_LIBRARY = torch.library.Library("phalanx", "DEF")  # type: ignore[no-untyped-call]
_SIZES = "int layers, int directions, int gates"
for _schema in (
    f"recurrence(Tensor input, Tensor[] hidden, Tensor[] weights, {_SIZES}) -> Tensor[]",
    "recurrence_backward(Tensor grad, Tensor input, Tensor[] hidden, Tensor[] weights, "
    f"Tensor[] reserve, {_SIZES}) -> Tensor[]",
):
    _LIBRARY.define(_schema)  # type: ignore[no-untyped-call]
GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
"""By the function of torch that the layers of torch.nn call."""
# Numbers that a step of one unit leaves for backward, by the number of gates, and one more for each
# layer but the last, whose output is kept. cuDNN does not say: benchmarks/planner/workspaces.py.
_KEPT = {4: 5, 3: 6, 1: 1}


@torch.library.register_fake("phalanx::recurrence", lib=_LIBRARY)  # type: ignore[untyped-decorator]
def _forward(
    input: Tensor,
    hidden: Sequence[Tensor],
    weights: Sequence[Tensor],
    layers: int,
    directions: int,
    gates: int,
) -> list[Tensor]:
    steps, samples = input.shape[:2]
    units = weights[0].shape[0] // gates
    output = input.new_empty(steps, samples, directions * hidden[0].shape[-1])
    kept = [_KEPT[gates] + (layer < layers - 1) for layer in range(layers)]
    return [
        output,
        *(torch.empty_like(state) for state in hidden),
        *(
            input.new_empty(steps, samples, count * units)
            for count in kept
            for _ in range(directions)
        ),
    ]


@torch.library.register_fake("phalanx::recurrence_backward", lib=_LIBRARY)  # type: ignore[untyped-decorator]
def _backward(
    grad: Tensor,
    input: Tensor,
    hidden: Sequence[Tensor],
    weights: Sequence[Tensor],
    reserve: Sequence[Tensor],
    layers: int,
    directions: int,
    gates: int,
) -> list[Tensor]:
    return [torch.empty_like(tensor) for tensor in (input, *hidden, *weights)]


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sizes: tuple[int, int, int], states: int, *tensors: Tensor) -> Any:
        ctx.sizes, ctx.states = sizes, states
        input, hidden, weights = tensors[0], tensors[1 : 1 + states], tensors[1 + states :]
        # cuDNN wants its input in one piece, steps first, and keeps the one it was given.
        output, *rest = torch.ops.phalanx.recurrence(
            input.contiguous(), list(hidden), list(weights), *sizes
        )
        ctx.save_for_backward(*tensors, *rest[states:])
        return (output, *rest[:states])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *rest: Any) -> Any:
        layers, directions, _ = ctx.sizes
        input, *saved = ctx.saved_tensors
        hidden, weights = saved[: ctx.states], saved[ctx.states : -layers * directions]
        reserve = saved[-layers * directions :]
        found = torch.ops.phalanx.recurrence_backward(
            grad.contiguous(), input.contiguous(), hidden, weights, reserve, *ctx.sizes
        )
        return (None, None, *found)


def as_cudnn(
    name: str, dtype: torch.dtype | None, spelled_out: Callable[..., Any]
) -> Callable[..., Any]:
    """Return what takes the place of torch's function of that name; autocast makes `dtype` of all
    it is given. A packed sequence is left as it is: its lengths are values."""

    def layer(input: Tensor, hidden: Any, weights: Any, *rest: Any) -> Any:
        if isinstance(weights, Tensor) or not isinstance(rest[0], bool):
            return spelled_out(input, hidden, weights, *rest)
        _, layers, _, _, is_bidirectional, is_batch_first = rest
        states = list(hidden) if name == "lstm" else [hidden]
        tensors = [input.transpose(0, 1) if is_batch_first else input, *states, *weights]
        if dtype is not None:
            tensors = [tensor.to(dtype) for tensor in tensors]
        sizes = (layers, 1 + is_bidirectional, GATES[name])
        output, *ends = _Recurrence.apply(sizes, len(states), *tensors)  # type: ignore[no-untyped-call]
        return (output.transpose(0, 1) if is_batch_first else output, *ends)

    return layer
