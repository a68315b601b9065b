"""Frozen linear layers in 4 bits: NF4, as QLoRA has it (Dettmers et al., 2023, arXiv 2305.14314).

A weight is one of 16 values times the largest of its block of 64: half a byte and a sixteenth. In
plain torch, so that it trains wherever torch does, is compiled into the product's own kernel, and
is read from a file by parts like any other weight.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BLOCK = 64
# The values of the paper's appendix E: quantiles of the normal distribution, with an exact zero.
_VALUES = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)


class Nf4Linear(nn.Linear):
    """A frozen linear layer whose weights are NF4. `weight` has two of them in each byte."""

    def __init__(self, given: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = given.in_features, given.out_features
        elements, device = self.in_features * self.out_features, given.weight.device
        packed = torch.empty(elements // 2, dtype=torch.uint8, device=device)
        self.weight = nn.Parameter(packed, requires_grad=False)
        self.scales = _Scales(elements // BLOCK, device)
        self.bias = given.bias
        values = torch.tensor(_VALUES, device=device)
        self.register_buffer("values", values, persistent=False)

    def forward(self, input: Tensor) -> Tensor:
        shape = self.out_features, self.in_features
        if torch.is_autocast_enabled(input.device.type):
            input = input.to(torch.get_autocast_dtype(input.device.type))
        product: Any = _Product.apply
        made: Tensor = product(input, self.weight, self.scales.each, self.values, shape)
        return made if self.bias is None else made + self.bias.to(made.dtype)


class _Scales(nn.Module):
    """Of each block. A module of its own: frozen parameters of linear layers may be held in 16
    bits, and these are in no product that rounds them anyway."""

    def __init__(self, blocks: int, device: torch.device) -> None:
        super().__init__()
        self.each = nn.Parameter(torch.empty(blocks, device=device), requires_grad=False)


class _Product(torch.autograd.Function):
    """Keeps the packed weights for backward, and unpacks them again there."""

    @staticmethod
    def forward(
        ctx: Any, input: Tensor, packed: Tensor, scale: Tensor, values: Tensor, shape: Any
    ) -> Tensor:
        ctx.save_for_backward(packed, scale, values)
        ctx.shape = shape
        return F.linear(input, unpack(packed, scale, values, shape, input.dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,) = gradients
        packed, scale, values = ctx.saved_tensors
        weight = unpack(packed, scale, values, ctx.shape, gradient.dtype)
        return gradient @ weight, None, None, None, None


def can_pack(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Linear) and layer.in_features * layer.out_features % BLOCK == 0


def pack(weight: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest value of each weight, two to a byte, and the scale of each block."""
    blocks = weight.float().reshape(-1, BLOCK)
    scale = blocks.abs().amax(1)
    values = torch.tensor(_VALUES)
    middles = (values[1:] + values[:-1]) / 2
    nearest = torch.bucketize(blocks / scale.clamp_min(1e-30)[:, None], middles)
    pairs = nearest.to(torch.uint8).reshape(-1, 2)
    return pairs[:, 0] << 4 | pairs[:, 1], scale


def unpack(
    packed: Tensor, scale: Tensor, values: Tensor, shape: tuple[int, int], dtype: torch.dtype
) -> Tensor:
    places = torch.stack((packed >> 4, packed & 15), -1).reshape(-1, BLOCK)
    return (values[places.int()] * scale[:, None]).to(dtype).reshape(shape)
