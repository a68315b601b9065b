"""CPU operators made to take the memory that CUDA's take, for a trace on tensors without values.

Five things differ enough to matter: dropout (CUDA keeps a mask of one byte per element), attention
with dropout or a mask that learns, recurrent layers (each one kernel on CUDA, spelled out on CPU),
the operators that CUDA's autocast runs in fp32, and among them softmax, which reads half precision
and writes fp32 without a copy in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from phalanx.tracing.attention import (
    attend_at_once,
    attend_step_by_step,
    is_scattered,
    is_spelled_out,
)
from phalanx.tracing.recurrence import GATES, as_cudnn

Change = Callable[[Callable[..., Any]], Callable[..., Any]]
"""A function made into another one."""
HALF = torch.float16
"""What stands for 16 bits: the operators of CPU know softmax from it to fp32, not from bfloat16."""

# pytorch.org/docs/stable/amp.html, "CUDA Ops that can autocast to float32"
_FP32_NAMES = (
    "__pow__ __rdiv__ __rpow__ __rtruediv__ acos asin binary_cross_entropy_with_logits cosh "
    "cosine_embedding_loss cdist cosine_similarity cumprod cumsum dist erfinv exp expm1 group_norm "
    "hinge_embedding_loss kl_div l1_loss layer_norm log log10 log1p log2 margin_ranking_loss "
    "mse_loss multilabel_margin_loss multi_margin_loss nll_loss norm normalize pdist "
    "poisson_nll_loss pow prod reciprocal rsqrt sinh smooth_l1_loss soft_margin_loss softmin "
    "softplus sum renorm tan triplet_margin_loss"
)
_SOFTMAX = {"softmax": torch.ops.aten._softmax, "log_softmax": torch.ops.aten._log_softmax}


@contextmanager
def as_cuda(*, is_autocast: bool) -> Iterator[None]:
    """Inside, forward takes what it would take on CUDA, also when it runs again in backward. What
    autocast does to other operators is left to CPU autocast."""
    changed: dict[str, Any] = {
        "dropout": _dropout,
        "scaled_dot_product_attention": _fused_attention(F.scaled_dot_product_attention),
        "rms_norm": _rms_norm,
    }
    changes: dict[str, Change] = {
        name: partial(as_cudnn, name, HALF if is_autocast else None) for name in GATES
    }
    if is_autocast:
        changes |= dict.fromkeys(_FP32_NAMES.split(), _in_fp32)
        changes |= {name: _fused(kernel) for name, kernel in _SOFTMAX.items()}
        changed |= {name: changes[name](getattr(F, name)) for name in changes & vars(F).keys()}
        changed["cross_entropy"] = _cross_entropy(F.cross_entropy)
    # A mode is off inside torch's own functions, such as attention's softmax (torch 2.10 to 2.13,
    # https://docs.pytorch.org/docs/2.10/notes/extending.html#extending-torch-with-modes): what they
    # call is exchanged in its module.
    with _Changing(changes), mock.patch.multiple(F, **changed):
        yield


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    if not training or p == 0:
        return input
    return torch.native_dropout(input, p, True)[0]


def _rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """One kernel on CUDA since torch 2.9, which keeps its input and a number for each row, as the
    one of layer_norm does; CPU spells it out."""
    return torch.native_layer_norm(input, list(normalized_shape), weight, None, eps or 1e-6)[0]


def _fused_attention(attention: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @wraps(attention)
    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **settings: Any,
    ) -> Tensor:
        if is_scattered(attn_mask):
            return attend_step_by_step(query, key, value, attn_mask, dropout_p)
        if is_spelled_out(query, value, attn_mask):
            return attend_at_once(query, key, value, attn_mask, is_causal=is_causal)
        return attention(query, key, value, attn_mask, 0.0, is_causal, **settings)

    return attend


class _Changing(TorchFunctionMode):
    """Makes other functions of torch's, by their names."""

    def __init__(self, changes: dict[str, Change]) -> None:
        super().__init__()
        self._changes = changes

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        change = self._changes.get(getattr(func, "__name__", ""))
        return (change(func) if change else func)(*args, **(kwargs or {}))


def _in_fp32(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def widened(*args: Any, **kwargs: Any) -> Any:
        return function(
            *(_widen(value) for value in args),
            **{name: _widen(value) for name, value in kwargs.items()},
        )

    return widened


def _widen(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype == HALF else value


def _fused(kernel: Any) -> Change:
    def change(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def fused(
            input: Tensor, dim: int | None = None, *rest: Any, dtype: Any = None, **settings: Any
        ) -> Any:
            if input.dtype != HALF or dtype not in (None, torch.float32):
                return function(input, dim, *rest, dtype=dtype, **settings)
            return kernel(input, -1 if dim is None else dim, True)

        return fused

    return change


def _cross_entropy(function: Callable[..., Any]) -> Callable[..., Any]:
    """Of class numbers: log_softmax and then the choice of one, as on CUDA."""

    @wraps(function)
    def composed(input: Tensor, target: Tensor, *rest: Any, **settings: Any) -> Any:
        is_smooth = len(rest) > 5 or settings.pop("label_smoothing", 0) > 0
        if input.dtype != HALF or target.is_floating_point() or is_smooth:
            return function(_widen(input), target, *rest, **settings)
        logs = _SOFTMAX["log_softmax"](input, min(1, input.dim() - 1), True)
        return F.nll_loss(logs, target, *rest, **settings)

    return composed
