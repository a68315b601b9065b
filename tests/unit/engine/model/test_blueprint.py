"""A model that is filled in part by part has the weights of one that was built in full."""

import numpy as np
import pytest
import torch
from torch import nn

from phalanx.engine.model.blueprint import Blueprint
from phalanx.engine.model.shards import Shard
from phalanx.recipe import Options, Recipe

CPU = torch.device("cpu")


class Everything(nn.Module):
    """Each way to make a weight that real models use."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 8, padding_idx=3)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)  # deep copies
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.recurrent = nn.LSTM(8, 8)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.position = nn.Parameter(torch.randn(4, 8) * 0.02)
        self.table = nn.Parameter(torch.from_numpy(np.arange(6.0)))
        frequencies = 1.0 / (10000 ** (torch.arange(0, 8, 2).float() / 8))
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.register_buffer("again", frequencies)
        self.register_buffer("numbers", torch.tensor([1, 2, 3]))
        self.head = nn.Linear(8, 10, bias=False)
        self.head.weight = self.embed.weight
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)  # draws until all are inside
        nn.init.orthogonal_(self.conv.weight)
        with torch.no_grad():
            self.head.weight[5:7].mul_(3.0)
            self.conv.bias.copy_(torch.linspace(0, 1, 4))


class Built(Recipe):
    kind = Everything

    def model(self):
        return self.kind()


def named(model):
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def make(kind):
    """A model built in full and a blueprint, from the same seed."""
    recipe = Built(Options())
    recipe.kind = kind
    torch.manual_seed(5)
    full = recipe.model()
    torch.manual_seed(5)
    return full, Blueprint(recipe)


def test_every_weight_is_the_same_to_the_bit():
    full, blueprint = make(Everything)
    assert all(t.is_meta for t in blueprint.model.state_dict().values() if t.dtype != torch.double)
    blueprint.make_room(CPU)
    model = blueprint.model
    blueprint.fill({name: Shard(t.detach(), tuple(t.shape)) for name, t in named(model).items()})
    assert named(model).keys() == named(full).keys()
    for name, tensor in named(full).items():
        assert torch.equal(named(model)[name], tensor), name
    assert model.head.weight is model.embed.weight
    assert [p.requires_grad for p in model.parameters()] == [
        p.requires_grad for p in full.parameters()
    ]


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_rank_gets_its_ranges(rank):
    full, blueprint = make(Everything)
    parts = {}
    for name, tensor in named(full).items():
        size = tensor.numel()
        start, stop = rank * size // 3, (rank + 1) * size // 3
        part = torch.full((stop - start,), -7, dtype=tensor.dtype)
        parts[name] = Shard(part, tuple(tensor.shape), start)
    blueprint.fill(parts)
    for name, shard in parts.items():
        assert torch.equal(shard.tensor, named(full)[name].flatten()[shard.start : shard.stop])


class Stack(nn.Module):
    """Many equal layers that are all initialised once more at the end, as transformers does."""

    def __init__(self, count=30):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(count))
        for layer in self.layers:
            nn.init.normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)


def test_only_one_whole_tensor_is_there_at_a_time(monkeypatch):
    full, blueprint = make(Stack)
    most = 0

    def watched(operation, real):
        nonlocal most
        run(operation, real)
        most = max(most, sum(storage.nbytes() for storage in real.values()))

    import phalanx.engine.model.blueprint as module

    run = module._run
    monkeypatch.setattr(module, "_run", watched)
    blueprint.make_room(CPU)
    tensors = named(blueprint.model)
    blueprint.fill({name: Shard(t.detach(), tuple(t.shape)) for name, t in tensors.items()})
    for name, tensor in named(full).items():
        assert torch.equal(tensors[name], tensor), name
    largest = 64 * 64 * 4
    assert most <= largest + 64 * 4, f"{most} bytes for a model whose largest tensor is {largest}"


class Peeking(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(3))
        self.first = self.weight[0].item()


def test_a_model_that_looks_at_its_weights_cannot_be_a_blueprint():
    recipe = Built(Options())
    recipe.kind = Peeking
    with pytest.raises(RuntimeError, match="meta"):
        Blueprint(recipe)
