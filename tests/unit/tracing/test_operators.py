"""The operators of a step are those that CUDA would run: counted by hand, and by torch."""

import json
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from phalanx.codec import from_json, to_json
from phalanx.planner.schema.footprint import Line
from phalanx.planner.schema.trace import Trace
from phalanx.recipe import Options, Recipe, Term
from phalanx.tracing.activations import trace_activations
from phalanx.tracing.trace import trace_recipe

DECODER = "tests/fixtures/recipes/learners.py:SequenceRecipe"
SAMPLES = 23


def decoder(**options):
    found, findings = trace_recipe(DECODER, options)
    assert findings == []
    return found


class Rows:
    def __init__(self, *shape, dtype=torch.float32):
        self.shape, self.dtype = shape, dtype

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return torch.ones(self.shape, dtype=self.dtype)


class Summed(Recipe):
    """The sum of squares of what a module makes of its input."""

    def __init__(self, build, rows):
        super().__init__(Options())
        self.model, self.rows = build, rows

    def data(self, split):
        return self.rows

    def loss(self, model, batch, keys):
        out = model(batch)
        out = out[0] if isinstance(out, tuple) else out
        return {"loss": Term(out.float().square().sum(), SAMPLES)}


def operators(build, rows, precision="fp32"):
    recipe = Summed(build, rows)
    found = trace_activations(recipe, recipe.model(), rows)
    assert found.unknown is None
    return found.operators[precision]


def total(found, phase, *kinds, field="flops", samples=1):
    chosen = [o for o in found if o.phase == phase and o.kind in kinds]
    return sum(o.times * getattr(o, field).at(samples) for o in chosen)


def test_a_decoder_takes_two_flops_per_weight_and_token_and_its_attention():
    width, length, depth, symbols = 64, 32, 3, 17
    found = decoder(width=width, length=length, depth=depth, symbols=symbols)
    weights = depth * 12 * width**2 + symbols * width  # of embeddings only the head multiplies
    for precision, dtype in (("fp32", "fp32"), ("bf16", "half")):
        ops = found.operators[precision]
        assert total(ops, "forward", "product") == 2 * weights * length
        assert total(ops, "backward", "product") == 2 * total(ops, "forward", "product")
        assert total(ops, "forward", "attention") == depth * 4 * width * length**2
        assert total(ops, "backward", "attention") == depth * 10 * width * length**2
        counted = [o for o in ops if o.kind in ("product", "attention")]
        assert {o.dtype for o in counted} == {dtype}
        for product in counted:
            if product.kind == "product":
                assert 2 * math.prod(line.at(5) for line in product.shape) == product.flops.at(5)
    q_k_v_out = 4 * length * width * 4
    (attention,) = [o for o in found.operators["fp32"] if o.name == "attention causal"]
    assert (attention.times, attention.bytes) == (depth, Line(0, q_k_v_out))


def test_layers_alike_are_one_row_and_a_trace_survives_json():
    few, many = decoder(depth=2), decoder(depth=9)
    for precision in ("fp32", "bf16"):
        rows = many.operators[precision]
        assert len(rows) == len(few.operators[precision]) < 100
        assert max(o.times for o in rows if o.kind == "product") == 9
    assert from_json(Trace, json.loads(json.dumps(to_json(many)))) == many


def test_recomputed_blocks_run_their_forward_once_more_in_backward():
    found = decoder()
    for precision in ("fp32", "bf16"):
        kept, again = found.operators[precision], found.checkpointed_operators[precision]
        kinds = ("product", "attention")
        head = 2 * 64 * 17 * 32  # in no block
        last = 3 * 2 * 32 * 64 * 4 * 64  # a block's last product: backward does not need its output
        assert total(again, "forward", *kinds) == total(kept, "forward", *kinds)
        more = total(again, "backward", *kinds) - total(kept, "backward", *kinds)
        assert more == total(kept, "forward", *kinds) - head - last


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.body = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.skip = nn.Conv2d(8, 16, 1, stride=2, bias=False)
        self.up = nn.ConvTranspose2d(16, 4, 4, stride=2, padding=1)
        self.head = nn.Linear(4, 5)

    def forward(self, x):
        x = torch.relu(self.norm(self.stem(x)))
        x = torch.relu(self.body(x) + self.skip(x))
        return self.head(self.up(x).mean((2, 3)))


def test_convolutions_take_the_flops_that_torch_counts():
    found = operators(Convolutions, Rows(3, 28, 28))
    with FlopCounterMode(display=False) as forward:
        loss = Convolutions()(torch.ones(SAMPLES, 3, 28, 28)).sum()
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    for phase, counter in (("forward", forward), ("backward", backward)):
        assert total(found, phase, "product", samples=SAMPLES) == counter.get_total_flops()
    named = [o for o in found if o.name == "convolution_backward input"]
    assert sum(o.times for o in named) == 3, "images need no gradient"


def test_groups_are_a_batch_of_products():
    (product,) = [
        o
        for o in operators(lambda: nn.Conv1d(6, 12, 5, groups=3, bias=False), Rows(6, 20))
        if o.phase == "forward" and o.kind == "product"
    ]
    assert product.shape == (Line(3, 0), Line(0, 16), Line(4, 0), Line(2 * 5, 0))
    assert product.flops == Line(0, 2 * 3 * 16 * 4 * 10)
    assert product.bytes == Line(4 * 12 * 2 * 5, 4 * (6 * 20 + 12 * 16))


@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
@pytest.mark.parametrize(("precision", "dtype"), [("fp32", "fp32"), ("bf16", "half")])
def test_a_recurrence_is_one_operator_per_layer_and_direction(kind, gates, precision, dtype):
    steps, width, units = 11, 6, 10
    found = operators(
        lambda: kind(width, units, num_layers=2, bidirectional=True, batch_first=True),
        Rows(steps, width),
        precision,
    )
    ops = [o for o in found if o.kind == "recurrence"]
    assert {o.dtype for o in ops} == {dtype}
    assert sum(o.times for o in ops) == 2 * 4
    entering = 2 * width + 2 * 2 * units
    flops = 2 * steps * gates * units * (entering + 4 * units)
    assert total(found, "forward", "recurrence") == flops
    assert total(found, "backward", "recurrence") == 2 * flops
    assert {o.shape for o in ops} == {
        (Line(steps, 0), Line(0, 1), Line(gates * units, 0), Line(units, 0))
    }


class Attention(nn.Module):
    def __init__(self, of_value, mask):
        super().__init__()
        self.widths = [8, 8, of_value]
        self.mix = nn.Linear(4, 2 * sum(self.widths))
        self.mask = mask

    def forward(self, x):
        parts = self.mix(x).unflatten(-1, (2, sum(self.widths))).split(self.widths, -1)
        q, k, v = (part.transpose(1, 2) for part in parts)
        return F.scaled_dot_product_attention(q, k, v, self.mask, dropout_p=0.5)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("of_value", "mask"),
    [
        (8, torch.ones(7, 7, dtype=torch.bool)),
        (8, nn.Parameter(torch.zeros(1, 2, 7, 7))),
        (5, None),
    ],
)
def test_attention_spelled_out_on_cpu_is_one_kernel(of_value, mask, precision):
    found = operators(lambda: Attention(of_value, mask), Rows(7, 4), precision)
    flops = 2 * 2 * 7 * 7 * (8 + of_value)
    assert total(found, "forward", "attention") == flops
    assert total(found, "backward", "attention") == flops * 5 // 2
    assert {o.dtype for o in found if o.kind == "attention"} == {
        {"fp32": "fp32", "bf16": "half"}[precision]
    }
    assert not [o for o in found if o.name == "bmm"]


def test_bytes_are_those_that_are_touched():
    table, width, length = 1000, 6, 5
    found = operators(lambda: nn.Embedding(table, width), Rows(length, dtype=torch.int64))
    by_name = {o.name: o for o in found}
    rows, ids = 4 * length * width, 8 * length
    assert by_name["embedding"].bytes == Line(0, 2 * rows + ids)
    assert by_name["embedding_dense_backward"].bytes == Line(4 * table * width, 2 * rows + ids)
    assert by_name["sum"].bytes == Line(4, rows)
    views = [o for o in found if o.kind == "view"]
    assert views
    assert {(o.flops, o.bytes) for o in views} == {(Line(0, 0), Line(0, 0))}


def test_statistics_take_a_second_pass():
    found = operators(lambda: nn.Sequential(nn.Conv1d(4, 4, 1), nn.BatchNorm1d(4)), Rows(4, 9))
    passes = [o.bytes.per_sample / (4 * 4 * 9) for o in found if "batch_norm" in o.name]
    assert passes == [3, 5]
