"""Models whose memory `memory.py` predicts and measures: made-up data, real shapes."""

from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from phalanx.recipe import Options, Recipe, Term


class GptOptions(Options):
    width: int = 768
    depth: int = 12
    heads: int = 12
    length: int = 1024
    vocab: int = 50304
    dropout: float = 0.1
    attention: str = "fused"
    """`fused`, `explicit`, or `torch` for nn.TransformerEncoderLayer."""


class Attention(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.options = options
        self.mix = nn.Linear(options.width, 3 * options.width)
        self.out = nn.Linear(options.width, options.width)

    def forward(self, x):
        batch, length, width = x.shape
        heads = self.options.heads
        parts = self.mix(x).split(width, 2)
        q, k, v = (p.view(batch, length, heads, width // heads).transpose(1, 2) for p in parts)
        dropout = self.options.dropout if self.training else 0.0
        if self.options.attention == "fused":
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        else:
            scores = (q @ k.transpose(-2, -1)) * (width // heads) ** -0.5
            y = F.dropout(F.softmax(scores, -1), dropout) @ v
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, options):
        super().__init__()
        width = options.width
        self.first, self.attention = nn.LayerNorm(width), Attention(options)
        self.second = nn.LayerNorm(width)
        self.layers = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
            nn.Dropout(options.dropout),
        )

    def forward(self, x):
        x = x + self.attention(self.first(x))
        return x + self.layers(self.second(x))


class Gpt(nn.Module):
    def __init__(self, options):
        super().__init__()
        width = options.width
        self.tokens = nn.Embedding(options.vocab, width)
        self.positions = nn.Embedding(options.length, width)
        self.blocks = nn.ModuleList(make_block(options) for _ in range(options.depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, options.vocab, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(
            torch.arange(tokens.shape[1], device=tokens.device)
        )
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def make_block(options):
    if options.attention != "torch":
        return Block(options)
    width = options.width
    return nn.TransformerEncoderLayer(
        width, options.heads, 4 * width, options.dropout, batch_first=True, norm_first=True
    )


class Tokens:
    def __init__(self, options):
        self.options = options

    def __len__(self):
        return 4096

    def __getitems__(self, ids, sample_keys):
        generator = np.random.default_rng(int(ids[0]))
        shape = (len(ids), self.options.length)
        return {"tokens": torch.from_numpy(generator.integers(0, self.options.vocab, shape))}


class GptRecipe(Recipe):
    Options = GptOptions

    def model(self):
        return Gpt(self.options)

    def data(self, split):
        return Tokens(self.options) if split == "train" else []

    def loss(self, model, batch, sample_keys):
        tokens = batch["tokens"]
        logits = model(tokens)[:, :-1]
        total = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum")
        return {"cross_entropy": Term(total / self.options.length, len(tokens))}


class ConvOptions(Options):
    width: int = 64
    size: int = 224


class Residual(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(after)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(after)
        self.skip = nn.Identity()
        if before != after:
            skip = nn.Conv2d(before, after, 1, stride, bias=False)
            self.skip = nn.Sequential(skip, nn.BatchNorm2d(after))

    def forward(self, x):
        y = F.relu(self.first_norm(self.first(x)), inplace=True)
        return F.relu(self.second_norm(self.second(y)) + self.skip(x))


class Conv(nn.Module):
    """ResNet-18 in shape."""

    def __init__(self, options):
        super().__init__()
        width = options.width
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        widths = [width, *(width * 2**stage for stage in (0, 0, 1, 1, 2, 2, 3, 3))]
        pairs = pairwise(widths)
        self.layers = nn.Sequential(*(Residual(a, b, 1 if a == b else 2) for a, b in pairs))
        self.head = nn.Linear(widths[-1], 1000)

    def forward(self, x):
        return self.head(self.layers(self.stem(x)).mean((2, 3)))


class Images:
    def __init__(self, options):
        self.size = options.size

    def __len__(self):
        return 4096

    def __getitems__(self, ids, sample_keys):
        images = torch.from_numpy(ids.astype(np.float32) % 7).view(-1, 1, 1, 1)
        shape = (len(ids), 3, self.size, self.size)
        return {"image": images.expand(shape).contiguous(), "label": torch.from_numpy(ids % 1000)}


class ConvRecipe(Recipe):
    Options = ConvOptions

    def model(self):
        return Conv(self.options)

    def data(self, split):
        return Images(self.options) if split == "train" else []

    def loss(self, model, batch, sample_keys):
        total = F.cross_entropy(model(batch["image"]), batch["label"], reduction="sum")
        return {"cross_entropy": Term(total, len(batch["label"]))}
