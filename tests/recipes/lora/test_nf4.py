"""Frozen weights in 4 bits."""

import pytest
import torch
from torch import nn

from phalanx.recipes.lora.nf4 import _VALUES, BLOCK, Nf4Linear, can_pack, pack, unpack


def packed_layer(plain):
    layer = Nf4Linear(plain)
    packed, scale = pack(plain.weight.detach())
    layer.weight.data, layer.scales.each.data = packed, scale
    return layer


def test_each_weight_becomes_the_nearest_value_of_its_block():
    torch.manual_seed(0)
    weight = torch.randn(6, 2 * BLOCK)
    packed, scale = pack(weight)
    assert packed.dtype == torch.uint8
    assert packed.numel() == weight.numel() // 2
    values = torch.tensor(_VALUES)
    blocks = weight.reshape(-1, BLOCK)
    allowed = values * blocks.abs().amax(1)[:, None]  # of each block
    nearest = (blocks[..., None] - allowed[:, None]).abs().argmin(-1)
    expected = allowed.gather(1, nearest).reshape(weight.shape)
    found = unpack(packed, scale, values, tuple(weight.shape), torch.float32)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_layer_and_its_gradient_are_those_of_the_unpacked_weights(is_compiled):
    torch.manual_seed(0)
    plain = nn.Linear(BLOCK, 10)
    layer = packed_layer(plain)
    shape = (10, BLOCK)
    plain.weight.data = unpack(layer.weight, layer.scales.each, layer.values, shape, torch.float32)
    run = torch.compile(layer, backend="aot_eager") if is_compiled else layer
    first = torch.randn(3, 5, BLOCK, requires_grad=True)
    second = first.detach().clone().requires_grad_()
    expected, found = plain(first), run(second)
    torch.testing.assert_close(found, expected)
    gradient = torch.randn_like(expected)
    expected.backward(gradient)
    found.backward(gradient)
    torch.testing.assert_close(second.grad, first.grad)


def test_backward_keeps_the_packed_weights_only():
    layer = packed_layer(nn.Linear(BLOCK * 4, BLOCK * 4))
    kept = []

    def keep(tensor):
        kept.append(tensor.numel() * tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        layer(torch.randn(1, BLOCK * 4, requires_grad=True))
    assert max(kept) == layer.weight.numel()


def test_what_does_not_fill_blocks_stays_as_it_is():
    assert can_pack(nn.Linear(16, 4))
    assert not can_pack(nn.Linear(7, 3))


def test_scales_keep_their_bits_where_frozen_weights_are_held_narrow():
    from phalanx.engine.model.frozen import narrow_frozen

    layer = packed_layer(nn.Linear(BLOCK, 4))
    narrow_frozen(layer, "bf16", torch.bfloat16)
    assert layer.scales.each.dtype == torch.float32
