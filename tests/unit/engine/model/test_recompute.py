"""A block that is run again in backward computes what it computed first, and changes nothing."""

import copy
import inspect

import pytest
import torch
from torch import nn

from phalanx.engine.model.recompute import recompute_in_backward


class Block(nn.Module):
    """Everything a second forward could get wrong: randomness, and buffers of three kinds."""

    def __init__(self):
        super().__init__()
        self.mix = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))  # _u and _v iterate
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("last", torch.zeros(4))
        self.register_buffer("table", torch.arange(4.0))
        self.forwards = 0

    def forward(self, x, *, gain):
        self.forwards += 1
        self.seen += 1  # in place
        y = nn.functional.dropout(self.norm(self.mix(x)) * self.seen, 0.5, self.training)
        self.last = y.detach().mean(0) + self.last  # replaced
        return x + y * gain + self.last + self.table


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        gain = torch.linspace(0.5, 1.5, 4)
        for block in self.blocks:
            x = block(x, gain=gain)
        return x


def make(*, is_recomputed):
    torch.manual_seed(0)
    model = Net()
    if is_recomputed:
        recompute_in_backward((str(i), block) for i, block in enumerate(model.blocks))
    return model


def step(model, seed):
    torch.default_generator.manual_seed(seed)
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(seed))
    loss = model(x).square().sum()
    after_forward = torch.rand(3)
    loss.backward()
    return loss.detach(), after_forward, torch.rand(3)


@pytest.mark.parametrize("is_copied", [False, True])
def test_the_bits_are_those_without_it(is_copied):
    plain, recomputed = make(is_recomputed=False), make(is_recomputed=True)
    if is_copied:
        original, recomputed = recomputed, copy.deepcopy(recomputed)
    for seed in range(3):  # the first call finds out what changes, later ones go by that
        for one, other in zip(step(plain, seed), step(recomputed, seed), strict=True):
            assert torch.equal(one, other)
        states = plain.state_dict(), recomputed.state_dict()
        assert list(states[0]) == list(states[1])
        for name, value in states[0].items():
            assert torch.equal(value, states[1][name]), name
        for (name, one), other in zip(
            plain.named_parameters(), recomputed.parameters(), strict=True
        ):
            assert torch.equal(one.grad, other.grad), name
    assert recomputed.blocks[0].forwards == 6, "nothing was recomputed"
    assert plain.blocks[0].norm.num_batches_tracked == 3
    if is_copied:
        assert original.blocks[0].forwards == 0, "the copy calls the original"


def test_only_inputs_are_kept():
    saved = []
    model = make(is_recomputed=True)
    with torch.autograd.graph.saved_tensors_hooks(saved.append, lambda tensor: tensor):
        model(torch.randn(6, 4))
    assert len(saved) == 2 * 3  # x and gain of each block


def test_without_gradients_nothing_is_run_twice():
    model = make(is_recomputed=True).eval()
    with torch.no_grad():
        model(torch.randn(6, 4))
    assert model.blocks[0].forwards == 1


def test_the_signature_stays():
    block = make(is_recomputed=True).blocks[0]
    assert list(inspect.signature(block.forward).parameters) == ["x", "gain"]


def test_backward_may_run_twice():
    plain, recomputed = make(is_recomputed=False), make(is_recomputed=True)
    for model in (plain, recomputed):
        torch.manual_seed(1)
        loss = model(torch.ones(6, 4)).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
    for one, other in zip(plain.parameters(), recomputed.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)
    for one, other in zip(plain.buffers(), recomputed.buffers(), strict=True):
        assert torch.equal(one, other)
