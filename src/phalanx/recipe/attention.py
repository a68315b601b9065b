"""Attention of transformers' models that is causal and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

_NAME = "sdpa_causal"


def attend_causally(model: nn.Module) -> None:
    """Let a causal model of transformers tell attention that it is causal, instead of giving it a
    mask that says so.

    Transformers leaves that mask out only where it can look at values: in compiled code and in CUDA
    graphs it makes one, and attention over it takes more than twice as long (GPT-2 at 16 x 1024 on
    an H200: 13.0 ms of a step instead of 5.5). Right padding needs no mask: no token sees what
    comes after it, and the labels of padding do not count. A mask that is given is used, windows
    are kept; packed rows need a mask of their own, their `position_ids` alone are not looked at."""
    from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register(_NAME, sdpa_attention_forward)
    AttentionMaskInterface.register(_NAME, _mask)
    for module in model.modules():
        if isinstance(module, PreTrainedModel) and module.config._attn_implementation == "sdpa":
            module.set_attn_implementation(_NAME)


def _mask(*, q_length: int, kv_length: int, **facts: Any) -> Any:
    """No mask where it would say no more than that attention is causal."""
    from transformers.masking_utils import sdpa_mask

    window = facts.get("local_size")
    is_plain = facts.get("attention_mask") is None and not facts.get("use_vmap")
    if is_plain and q_length == kv_length and (window is None or kv_length <= window):
        return None
    return sdpa_mask(q_length=q_length, kv_length=kv_length, **facts)
