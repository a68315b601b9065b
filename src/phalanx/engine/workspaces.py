"""What CUDA's libraries take while an operator runs, and give back: bytes besides its tensors.

Measured by benchmarks/planner/workspaces.py on an H200 (cuDNN 9); no library says it beforehand.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

# A convolution of exact fp32 goes through transformed tiles: of its input, and of its weights.
_TILED_INPUT, _TILED_WEIGHT = 4.5, 70
# A recurrent layer's products of all steps, by the number of gates, for each direction; both
# directions at a time take more, further layers little.
_RECURRENT_BESIDES = 2.8
_BOTH_DIRECTIONS = 1.25
_FURTHER_LAYER = 1.2


def convolution_workspace(
    x: Tensor, weight: Tensor, out: Tensor, stride: Any, groups: int, *, is_exact: bool
) -> int:
    """`x` and `out` of forward, which backward has too. Tensor cores want channels last: both are
    turned around, but for products of single pixels. `is_exact`: fp32 without TF32."""
    window = math.prod(weight.shape[2:])
    if groups > 1:
        return 0
    if is_exact and x.element_size() >= 4:
        is_tiled = window == 9 and math.prod(stride) == 1
        return int(_TILED_INPUT * x.nbytes + _TILED_WEIGHT * weight.nbytes) if is_tiled else 0
    if window == 1 and x.dim() == 4 and math.prod(stride) == 1:
        return 0
    return x.nbytes + out.nbytes


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
