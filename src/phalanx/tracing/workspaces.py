"""What CUDA's libraries take while an operator runs, and give back: bytes besides its tensors.

Measured by benchmarks/planner/workspaces.py on an H200 (cuDNN 9); no library says it beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from phalanx.tracing.kernels import Call

CONVOLUTIONS = ("convolution", "convolution_backward")
# A convolution of exact fp32 goes through transformed tiles: of its input, and of its weights.
_TILED_INPUT, _TILED_WEIGHT = 4.5, 70
# A recurrent layer's products of all steps, by the number of gates, for each direction; both
# directions at a time take more, further layers little.
_RECURRENT_BESIDES = 2.8
_BOTH_DIRECTIONS = 1.25
_FURTHER_LAYER = 1.2
_FLATTENED = 1.33


def convolution_workspace(
    x: Tensor, weight: Tensor, out: Tensor, stride: Any, groups: int, *, is_exact: bool
) -> int:
    """`x` and `out` of forward, which backward has too. Tensor cores want channels last: both are
    turned around, but for products of single pixels. `is_exact`: fp32 without TF32. What is laid
    out with channels last takes nothing (`live_memory.py`)."""
    window = math.prod(weight.shape[2:])
    if groups > 1:
        return 0
    if is_exact and x.element_size() >= 4:
        is_tiled = window == 9 and math.prod(stride) == 1
        return int(_TILED_INPUT * x.nbytes + _TILED_WEIGHT * weight.nbytes) if is_tiled else 0
    if window == 1 and x.dim() == 4 and math.prod(stride) == 1:
        return 0
    return x.nbytes + out.nbytes


def flattened_weights(weights: Sequence[Tensor]) -> int:
    """Weights in half precision are put into one piece on the way, whatever the batch."""
    return sum(int(_FLATTENED * w.nbytes) for w in weights if w.element_size() == 2)


def recurrent_workspace(x: Tensor, units: int, gates: int, layers: int, directions: int) -> int:
    """Of forward or of backward; `x` has steps and samples first."""
    each = (gates + _RECURRENT_BESIDES) * directions
    if directions == 2:
        each *= _BOTH_DIRECTIONS
    each += _FURTHER_LAYER * directions * (layers - 1)
    return int(each * x.shape[0] * x.shape[1] * units * x.element_size())


def counting_workspace(x: Tensor, out: Tensor) -> int:
    """Sums of what is no int64 into int64, as backward of a maximum counts ties: a copy first."""
    is_counted = not x.is_floating_point() and out.element_size() > x.element_size()
    return x.numel() * out.element_size() if is_counted else 0


class Workspace(NamedTuple):
    """Bytes that a library takes while a call runs."""

    fixed: int = 0
    of_samples: int = 0
    """Grows with what the call reads."""


def workspace_of(call: Call, *, is_exact: bool) -> Workspace:
    """What a call takes besides its tensors; `is_exact`: fp32 products without TF32."""
    if call.name in CONVOLUTIONS:
        out = call.out[0] if call.name == "convolution" else call["grad_output"]
        return Workspace(
            of_samples=convolution_workspace(
                call["input"],
                call["weight"],
                out,
                call["stride"],
                call["groups"],
                is_exact=is_exact,
            )
        )
    if call.name in ("recurrence", "recurrence_backward"):
        weights = call["weights"]
        sizes = (call["gates"], call["layers"], call["directions"])
        taken = recurrent_workspace(call["input"], weights[1].shape[1], *sizes)
        return Workspace(flattened_weights(weights), taken)
    if call.name == "sum":
        return Workspace(of_samples=counting_workspace(call.args[0], call.out[0]))
    return Workspace()
