"""Norm layers of a model whose parameters are in bf16 or fp16: they compute with fp32 weights.

torch's kernels for BatchNorm want weights as wide as the running statistics; on the CPU those for
LayerNorm and GroupNorm want them as wide as the input. The weights are widened for the time of a
forward, and the gradient goes back through that to the narrow ones.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

_NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm)


def widen_norms(model: nn.Module) -> None:
    """Let every norm layer of a model compute with fp32 weights."""
    for module in model.modules():
        if isinstance(module, _NORMS):
            module.forward = partial(_forward, module, module.forward)  # type: ignore[method-assign]


def _forward(module: nn.Module, forward: Callable[..., Tensor], *args: Any) -> Tensor:
    narrow = dict(module._parameters.items())
    for name, parameter in narrow.items():
        if parameter is not None:
            module._parameters[name] = parameter.float()  # type: ignore[assignment]
    try:
        return forward(*args)
    finally:
        module._parameters.update(narrow)
