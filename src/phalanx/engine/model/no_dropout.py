"""Training without dropout, for runs that are compared in different micro-batches: masks are drawn
per micro-batch, so they would differ by nature."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

# Every dropout of torch.nn.functional ends in one of these. torch 2.13 has no official way to turn
# off dropout that a forward calls as a function, and function modes are gone when backward runs a
# block again: https://docs.pytorch.org/docs/2.13/generated/torch.nn.functional.dropout.html
_DRAWN = [
    f"{name}{ending}"
    for name in ("dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout")
    for ending in ("", "_")
]


_ATTENTION = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")

DISABLED: set[str] = set()
"""Functions that had dropout to do since somebody looked, as `F.dropout`."""


@contextmanager
def dropout_disabled() -> Iterator[None]:
    """Let torch's dropout functions pass on what they are given, also in backward, where blocks are
    recomputed."""
    attention: Callable[..., Tensor] = F.scaled_dot_product_attention

    def attend(*args: Any, **named: Any) -> Tensor:
        given = {**dict(zip(_ATTENTION, args, strict=False)), **named}
        if given.pop("dropout_p", 0.0) > 0:
            DISABLED.add("F.scaled_dot_product_attention")
        return attention(**given)

    for name in _DRAWN:
        setattr(torch._VF, name, _passing_on(name))
    F.scaled_dot_product_attention = attend
    try:
        yield
    finally:
        F.scaled_dot_product_attention = attention
        for name in _DRAWN:
            delattr(torch._VF, name)


def _passing_on(name: str) -> Callable[[Tensor, float, bool], Tensor]:
    def pass_on(input: Tensor, p: float, train: bool) -> Tensor:
        if train and p > 0:
            DISABLED.add(f"F.{name.rstrip('_')}")
        return input

    return pass_on


def clear_rates(model: nn.Module) -> list[str]:
    """Set every rate of dropout or stochastic depth that a module holds to 0; return which."""
    found = []
    for path, module in model.named_modules():
        is_dropout = isinstance(module, _DropoutNd)
        for name, value in vars(module).items():
            is_rate = "drop" in name.lower() or (is_dropout and name == "p")
            if is_rate and isinstance(value, float) and 0 < value <= 1:
                setattr(module, name, 0.0)
                found.append(f"{path}.{name}" if path else name)
    return found
