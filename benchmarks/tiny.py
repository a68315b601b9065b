"""A recipe whose step takes well under a millisecond on a CPU: what is left is overhead."""

import numpy as np
from torch import nn
from torch.nn import functional as F

from phalanx.recipe import Options, Recipe, Tensors, Term


class TinyOptions(Options):
    samples: int = 65_536
    columns: int = 32
    width: int = 64
    classes: int = 10


def make_rows(options, seed, samples):
    """Arrays in memory."""
    generator = np.random.default_rng(seed)
    return {
        "x": generator.normal(size=(samples, options.columns)).astype(np.float32),
        "y": generator.integers(options.classes, size=samples),
    }


class Tiny(Recipe):
    """Two linear layers on numbers."""

    Options = TinyOptions

    def model(self):
        options = self.options
        return nn.Sequential(
            nn.Linear(options.columns, options.width),
            nn.ReLU(),
            nn.Linear(options.width, options.classes),
        )

    def data(self, split):
        if split == "train":
            return Tensors(make_rows(self.options, 1, self.options.samples))
        return Tensors(make_rows(self.options, 2, 1024))

    def loss(self, model, batch, keys):
        total = F.cross_entropy(model(batch["x"]), batch["y"], reduction="sum")
        return {"loss": Term(total, len(batch["y"]))}

    def evaluate(self, model, batch):
        total = F.cross_entropy(model(batch["x"]), batch["y"], reduction="sum")
        return {"loss": total, "samples": len(batch["y"])}

    def metrics(self, sums):
        return {"loss": sums["loss"] / sums["samples"]}
