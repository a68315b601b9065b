"""What compiled code keeps and makes, told without compiling it."""

import torch
import torch.nn.functional as F
from torch import nn

from phalanx.recipe import Recipe, Term
from phalanx.tracing.activations import trace_activations
from phalanx.tracing.operators import SAMPLES

BOTH = ("fp32", "bf16", "fp32+compiled", "bf16+compiled")
WIDTH, CLASSES = 64, 1000


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.narrow(F.gelu(self.wide(self.norm(x))) * 2)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*(Block() for _ in range(3)))
        self.head = nn.Linear(WIDTH, CLASSES, bias=False)

    def forward(self, x):
        return self.head(self.blocks(x))


class Classes(Recipe):
    def model(self):
        return Net()

    def loss(self, model, batch, keys):
        scores = model(batch["x"])
        return {"class": Term(F.cross_entropy(scores, batch["y"], reduction="sum"), len(scores))}


class Rows:
    def __len__(self):
        return SAMPLES

    def __getitems__(self, ids, keys):
        return {"x": torch.zeros(len(ids), WIDTH), "y": torch.zeros(len(ids), dtype=torch.int64)}


def peak(lines):
    return max(line.per_sample for line in lines)


def kernels(operators, kind):
    return sum(operator.times for operator in operators if operator.kind == kind)


def moved(operators):
    """Bytes per sample of all that is no product."""
    others = [operator for operator in operators if operator.kind != "product"]
    return sum(operator.times * operator.bytes.per_sample for operator in others)


def test_compiled_code_makes_what_inductor_would():
    """In fp32, per sample. Kept of a block: its input, the norm's answer and two numbers, the wide
    layer before and after GELU. At the peak the scores are there, and their gradient, but neither
    log-probabilities nor anything between the operators that are fused."""
    recipe = Classes(Classes.Options())
    found = trace_activations(recipe, recipe.model(), Rows(), BOTH)
    assert found.unknown is None and found.compiled_unknown is None
    block = 4 * (WIDTH + WIDTH + 2 + 2 * 4 * WIDTH)
    last = 4 * WIDTH
    loss = 2 * 4 * CLASSES
    small = 64  # the target, rows' largest score and sum
    kept = peak(found.kept["fp32+compiled"])
    assert 3 * block + last + loss <= kept <= 3 * block + last + loss + small
    assert kept < peak(found.kept["fp32"])
    assert peak(found.checkpointed["fp32+compiled"]) < kept
    eager, compiled = found.operators["fp32"], found.operators["fp32+compiled"]
    assert kernels(compiled, "product") == kernels(eager, "product") == 3 * 6 + 3
    assert moved(compiled) < moved(eager)


def test_a_model_without_alike_blocks_is_compiled_whole():
    recipe = Classes(Classes.Options())
    parts = [nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Tanh(), nn.Linear(WIDTH, 8)]
    recipe.model = lambda: nn.Sequential(*parts)
    found = trace_activations(recipe, recipe.model(), Rows(), BOTH)
    assert found.compiled_unknown is None
    assert peak(found.kept["fp32+compiled"]) < peak(found.kept["fp32"])
    assert not found.checkpointed
