"""What a micro-batch takes, found on tensors without values, is what it takes."""

import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from phalanx.recipe import Options, Recipe, Term
from phalanx.tracing.activations import trace_activations

WIDTH = 32
MIB = 2**20


class Layer(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.mix = nn.Linear(WIDTH, 2 * WIDTH)
        self.norm = nn.BatchNorm1d(2 * WIDTH)
        self.out = nn.Linear(2 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return x + self.dropout(self.out(torch.tanh(self.norm(self.mix(x)))))


class Stack(nn.Module):
    def __init__(self, depth, dropout):
        super().__init__()
        self.layers = nn.ModuleList(Layer(dropout) for _ in range(depth))
        self.head = nn.Linear(WIDTH, 10)
        self.scale = torch.ones(WIDTH)  # no buffer: it stays on the device it was made on

    def forward(self, x):
        x = x * self.scale
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Rows:
    def __len__(self):
        return 9

    def __getitem__(self, index):
        return {"x": torch.full((WIDTH,), float(index)), "y": index}


class Stacked(Recipe):
    def __init__(self, *, depth=3, dropout=0.0, reads_values=False, is_frozen=False):
        super().__init__(Options())
        self.depth, self.dropout = depth, dropout
        self.reads_values, self.is_frozen = reads_values, is_frozen

    def model(self):
        return Stack(self.depth, self.dropout).requires_grad_(not self.is_frozen)

    def data(self, split):
        return Rows()

    def loss(self, model, batch, keys):
        if self.reads_values and batch["x"].sum().item() > 0:
            raise AssertionError("a tensor without values has one")
        logits = model(batch["x"])
        return {"loss": Term(F.cross_entropy(logits, batch["y"], reduction="sum"), len(logits))}


def trace(**settings):
    recipe = Stacked(**settings)
    with torch.device("meta"):
        model = recipe.model()
    return trace_activations(recipe, model, recipe.data("train"))


def at(lines, samples):
    return max(line.at(samples) for line in lines)


class Peak(TorchDispatchMode):
    """The most bytes alive at once, counted on real tensors."""

    def __init__(self, model):
        super().__init__()
        self.known = {t.untyped_storage()._cdata for t in (*model.parameters(), *model.buffers())}
        self.now = self.most = 0
        self.refs = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self.known:
                    self.add(storage, storage._cdata, storage.nbytes())
        return out

    def add(self, storage, key, size):
        def free(_):
            self.known.remove(key)
            self.now -= size

        self.known.add(key)
        self.refs[key] = weakref.ref(storage, free)
        self.now += size
        self.most = max(self.most, self.now)


@pytest.mark.parametrize("samples", [2, 8, 41])
def test_a_prediction_is_what_real_tensors_take(samples):
    recipe = Stacked()
    model = recipe.model()
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    batch = {"x": torch.ones(samples, WIDTH), "y": torch.zeros(samples, dtype=torch.int64)}
    with Peak(model) as peak:
        recipe.loss(model, batch, None)["loss"].sum.backward()
    assert at(trace().kept["fp32"], samples) == peak.most


def test_recomputing_leaves_the_inputs_of_the_blocks():
    few, many = trace(depth=4), trace(depth=12)
    # One more block keeps its input; without checkpointing also two things of twice the width.
    for found, numbers in (("checkpointed", 1), ("kept", 5)):
        grown = at(getattr(many, found)["fp32"], 256) - at(getattr(few, found)["fp32"], 256)
        assert grown / (8 * 256 * 4 * WIDTH) == pytest.approx(numbers, rel=0.02), found
    assert few.input_bytes == 4 * WIDTH + 8
    assert trace(depth=1).checkpointed == {}, "one layer is no block"


def test_dropout_keeps_a_byte_for_each_number_as_on_cuda():
    grown = [
        at(trace(depth=16, dropout=p).kept["fp32"], 64)
        - at(trace(depth=8, dropout=p).kept["fp32"], 64)
        for p in (0.0, 0.5)
    ]
    assert grown[1] - grown[0] == 8 * 64 * WIDTH


def test_half_precision_takes_less():
    found = trace(depth=8)
    assert at(found.kept["bf16"], 512) < 0.75 * at(found.kept["fp32"], 512)


def test_the_loss_of_half_logits_takes_what_it_takes_on_cuda():
    class Words(Stacked):
        def model(self):
            return nn.Linear(WIDTH, 4096)

    found = trace_activations(Words(), Words().model(), Rows())
    # Backward: fp32 logarithms, their fp32 gradient, and the gradient of the logits in 16 bits; in
    # fp32 three times four bytes.
    for precision, count in (("bf16", 4 + 4 + 2), ("fp32", 12)):
        lines = found.kept[precision]
        assert at(lines, 513) - at(lines, 512) == pytest.approx(4096 * count, rel=0.01)


def test_a_loss_that_reads_values_is_not_traced_and_says_so():
    found = trace(reads_values=True)
    assert (found.kept, found.checkpointed) == ({}, {})
    assert (found.operators, found.checkpointed_operators) == ({}, {})
    assert "DataDependentOutputException" in found.unknown
    assert found.input_bytes == 4 * WIDTH + 8


def test_a_model_that_does_not_learn_is_traced():
    assert at(trace(is_frozen=True).kept["fp32"], 4) > 0


def test_a_recomputed_softmax_is_the_one_of_forward(monkeypatch):
    """As a method of half precision it is fp32 on CUDA; backward runs without function modes, and
    checkpointing refuses what comes out in another type."""
    monkeypatch.setattr(Layer, "forward", lambda self, x: x + self.out(self.mix(x).softmax(-1)))
    traced = trace()
    assert traced.unknown is None
    assert at(traced.checkpointed["bf16"], 8) < at(traced.kept["bf16"], 8)
