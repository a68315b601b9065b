"""What the recipes of this benchmark share: data made in memory, and losses over it.

A micro-batch is a slice of a few rows held in memory, so that fetching it costs nothing beside the
copy to the device, and a step is never measured waiting for its data.
"""

import torch
import torch.nn.functional as F

from phalanx.recipe import Options, Recipe, Term


class Sized(Options):
    samples: int = 1 << 20
    """Rows that the data claims to have; few are held."""


class Rows:
    """`samples` rows; the held ones are repeated when a micro-batch is larger."""

    def __init__(self, samples, held):
        self.samples, self.held = samples, held

    def __len__(self):
        return self.samples

    def __getitems__(self, ids, keys):
        rows = min(len(tensor) for tensor in self.held.values())
        if rows < len(ids):
            times = -(-len(ids) // rows)
            self.held = {name: torch.cat([t] * times) for name, t in self.held.items()}
        return {name: tensor[: len(ids)] for name, tensor in self.held.items()}


class Synthetic(Recipe):
    """A recipe that only says what its rows are: `rows(count, generator)`."""

    Options = Sized
    held = 64

    def data(self, split):
        if split == "test":
            return None
        made = self.rows(self.held, torch.Generator().manual_seed(0))
        return Rows(self.options.samples, made)


def pixels(count, size, generator, channels=3):
    """Images as they come from files: a byte per channel; `scaled` makes numbers of them."""
    height, width = size if isinstance(size, tuple) else (size, size)
    shape = (count, channels, height, width)
    return torch.randint(256, shape, generator=generator, dtype=torch.uint8)


def scaled(image):
    return image.float() / 127.5 - 1


def choices(count, classes, generator):
    return torch.randint(classes, (count,), generator=generator)


def tokens(count, length, symbols, generator):
    return torch.randint(symbols, (count, length), generator=generator)


def normal(*shape, generator):
    return torch.randn(shape, generator=generator)


class Classifier(Synthetic):
    """One input `x`, one of `classes` as the answer."""

    def loss(self, model, batch, keys):
        scores = model(self.prepared(batch["x"]))
        return {
            "label": Term(F.cross_entropy(scores, batch["label"], reduction="sum"), len(scores))
        }

    def prepared(self, x):
        return x


class ImageClassifier(Classifier):
    def rows(self, count, generator):
        options = self.options
        return {
            "x": pixels(count, options.size, generator),
            "label": choices(count, options.classes, generator),
        }

    def prepared(self, x):
        return scaled(x)


class NextToken(Synthetic):
    """A decoder's loss: every token from those before it."""

    held = 256

    def rows(self, count, generator):
        options = self.options
        return {"tokens": tokens(count, options.length + 1, options.symbols, generator)}

    def weight(self, batch):
        return float(batch["tokens"][:, 1:].numel())

    def loss(self, model, batch, keys):
        wanted = batch["tokens"][:, 1:]
        scores = model(batch["tokens"][:, :-1])
        total = F.cross_entropy(scores.flatten(0, 1), wanted.flatten(), reduction="sum")
        return {"next": Term(total, wanted.numel())}
