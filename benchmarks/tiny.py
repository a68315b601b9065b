"""A recipe whose step takes well under a millisecond on a CPU: what is left is overhead."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from phalanx.recipe import Options, Recipe, Term


class TinyOptions(Options):
    samples: int = 65_536
    columns: int = 32
    width: int = 64
    classes: int = 10


class Rows:
    """Arrays in memory, fetched by a vectorised index."""

    def __init__(self, options, seed, samples):
        generator = np.random.default_rng(seed)
        x = generator.normal(size=(samples, options.columns)).astype(np.float32)
        self.x = torch.from_numpy(x)
        self.y = torch.from_numpy(generator.integers(options.classes, size=samples))

    def __len__(self):
        return len(self.x)

    def __getitems__(self, ids, keys):
        index = torch.from_numpy(ids)
        return {"x": self.x[index], "y": self.y[index]}


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
            return Rows(self.options, 1, self.options.samples)
        return Rows(self.options, 2, 1024)

    def loss(self, model, batch, keys):
        total = F.cross_entropy(model(batch["x"]), batch["y"], reduction="sum")
        return {"loss": Term(total, len(batch["y"]))}

    def evaluate(self, model, batch):
        total = F.cross_entropy(model(batch["x"]), batch["y"], reduction="sum")
        return {"loss": total, "samples": len(batch["y"])}

    def metrics(self, sums):
        return {"loss": sums["loss"] / sums["samples"]}
