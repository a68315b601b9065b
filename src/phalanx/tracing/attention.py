"""Attention as CUDA runs it where CPU does not: a kernel for a mask that learns and for values of
another width than keys; a mask whose rows are not in one piece is spelled out.

Tensors without values only, as in `recurrence.py`: nothing is computed here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_LIBRARY = torch.library.Library("phalanx", "FRAGMENT")  # type: ignore[no-untyped-call]
_OPERANDS = "Tensor query, Tensor key, Tensor value, Tensor? attn_mask"
for _schema in (
    f"attention({_OPERANDS}, bool is_causal) -> (Tensor, Tensor)",
    f"attention_backward(Tensor grad, {_OPERANDS}, Tensor out, Tensor logsumexp, bool is_causal) "
    "-> Tensor[]",
):
    _LIBRARY.define(_schema)  # type: ignore[no-untyped-call]


@torch.library.register_fake("phalanx::attention", lib=_LIBRARY)  # type: ignore[untyped-decorator]
def _forward(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, is_causal: bool
) -> tuple[Tensor, Tensor]:
    out = query.new_empty(*query.shape[:-1], value.shape[-1])
    return out, query.new_empty(query.shape[:-1], dtype=torch.float32)


@torch.library.register_fake("phalanx::attention_backward", lib=_LIBRARY)  # type: ignore[untyped-decorator]
def _backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    is_causal: bool,
) -> list[Tensor]:
    found = [torch.empty_like(tensor) for tensor in (query, key, value)]
    if attn_mask is not None:  # of every sample and head; the mask's own is their sum
        found.append(query.new_empty(*query.shape[:-1], key.shape[-2]))
    return found


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, is_causal: bool, *operands: Tensor | None) -> Tensor:
        ctx.is_causal = is_causal
        out, logsumexp = torch.ops.phalanx.attention(*operands, is_causal)
        ctx.save_for_backward(*operands, out, logsumexp)
        return out  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        query, key, value, mask, out, logsumexp = ctx.saved_tensors
        learns = mask if ctx.needs_input_grad[4] else None
        found = torch.ops.phalanx.attention_backward(
            grad, query, key, value, learns, out, logsumexp, ctx.is_causal
        )
        of_mask = found[3].sum_to_size(mask.shape) if learns is not None else None
        return (None, *found[:3], of_mask)


def is_spelled_out(query: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    """Whether CPU would spell out what CUDA does in one kernel."""
    if query.dim() != 4 or (mask is not None and not mask.is_floating_point()):
        return False
    if is_scattered(mask):
        return False
    learns = mask is not None and mask.requires_grad and torch.is_grad_enabled()
    return learns or query.shape[-1] != value.shape[-1]


def attend_at_once(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, is_causal: bool
) -> Tensor:
    """Attention as one operator; under autocast in half precision, as CUDA has it."""
    operands = [query, key, value, mask]
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        operands = [tensor.to(dtype) if tensor is not None else None for tensor in operands]
    return _Attention.apply(is_causal, *operands)  # type: ignore[no-any-return, no-untyped-call]


def is_scattered(mask: Tensor | None) -> bool:
    """Whether a mask keeps every kernel of CUDA out (aten/native/transformers/sdp_utils_cpp.h,
    check_last_dim_stride_equals_1_dense)."""
    return mask is not None and mask.shape[-1] > 1 and mask.stride(-1) != 1


def attend_step_by_step(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float
) -> Tensor:
    """As torch's `_scaled_dot_product_attention_math` does it on CUDA: in fp32, and with a mask of
    what dropout keeps."""
    dtype = query.dtype
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
    with torch.autocast("cpu", enabled=False):
        query, key, value = (part.to(dtype).float() for part in (query, key, value))
        scale = query.shape[-1] ** -0.25
        scores = (query * scale) @ (key * scale).transpose(-2, -1)
        if mask is not None:
            scores = scores + mask.to(dtype)
        shares = torch.ops.aten._softmax(scores, -1, False)
        if dropout > 0:
            shares = torch.native_dropout(shares, dropout, True)[0]
        out: Tensor = shares @ value
        return out.to(dtype)
