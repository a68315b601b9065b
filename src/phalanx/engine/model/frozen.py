"""Frozen weights in the precision of the run: half the memory, and nothing to cast at each use.

Under bf16 and fp16 autocast rounds the weights of linear layers and convolutions whenever they are
used. What learns needs its fp32 bits between steps; what is frozen does not. An embedding is not
rounded by autocast, and what it gives is what a transformer adds everything to: in bf16 it is held
narrow too, as models are that are loaded in bf16; in fp16 it stays as it is, because such sums go
beyond fp16's 65,504.
"""

from __future__ import annotations

from collections.abc import Container

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

_ROUNDED = (nn.Linear, _ConvNd)
"""Modules whose weights autocast rounds."""


def find_frozen(model: nn.Module) -> dict[nn.Parameter, str]:
    """Frozen weights that may be held narrow, each with `half`, or `bf16` where that is all."""
    users: dict[nn.Parameter, list[nn.Module]] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            users.setdefault(parameter, []).append(module)
    found = {}
    for parameter, modules in users.items():
        if parameter.requires_grad or parameter.dtype != torch.float32:
            continue
        if all(isinstance(module, _ROUNDED) for module in modules):
            found[parameter] = "half"
        elif all(isinstance(module, (*_ROUNDED, nn.Embedding)) for module in modules):
            found[parameter] = "bf16"
    return found


@torch.no_grad()
def narrow_frozen(
    model: nn.Module, precision: str, dtype: torch.dtype, *, unread: Container[str] = ()
) -> list[nn.Parameter]:
    """Hold frozen weights in `dtype`; returns them. Those named in `unread` get their values later:
    what they hold now is not looked at, which for memory that was never written costs nothing."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    narrowed = []
    for parameter, held in find_frozen(model).items():
        if held not in ("half", precision):
            continue
        if names[parameter] in unread:
            parameter.data = torch.empty_like(parameter, dtype=dtype)
        else:
            parameter.data = parameter.detach().to(dtype)
        narrowed.append(parameter)
    return narrowed
