"""Networks of the `fresh` group: other shapes and other operators than in the files beside."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from attention import FusedAttention, rotated, split_heads
from convolutional import ConvNorm
from torch import nn


class RowDrop(nn.Module):
    """Stochastic depth: a residual is left out for some rows of the micro-batch."""

    def __init__(self, rate):
        super().__init__()
        self.kept = 1 - rate

    def forward(self, x):
        if not self.training:
            return x
        is_kept = x.new_empty((len(x), *[1] * (x.dim() - 1))).bernoulli_(self.kept)
        return x * is_kept.div_(self.kept)


class WindowAttention(nn.Module):
    """Attention within windows of a grid, the grid moved by `shift` before and back after. Scores
    are made in full, as published: a bias by distance, and a mask between what the move brought
    together."""

    def __init__(self, side, width, heads, window, shift):
        super().__init__()
        self.heads, self.window, self.shift = heads, window, shift
        self.mix, self.last = nn.Linear(width, 3 * width), nn.Linear(width, width)
        reach = 2 * window - 1
        self.near = nn.Parameter(nn.init.trunc_normal_(torch.empty(reach**2, heads), std=0.02))
        place = torch.cartesian_prod(torch.arange(window), torch.arange(window))
        apart = place[:, None] - place[None] + window - 1
        self.register_buffer("apart", apart[..., 0] * reach + apart[..., 1], persistent=False)
        line = torch.arange(side)
        part = (line >= side - window).long() + (line >= side - shift).long()
        part = self._windows((3 * part[:, None] + part)[None, ..., None])[..., 0]
        is_other = (part[:, None] != part[:, :, None]).float()
        self.register_buffer("mask", -100 * is_other, persistent=False)

    def _windows(self, x):
        """Rows of a grid as rows of windows: (rows * windows, places, channels)."""
        x = x.unflatten(2, (-1, self.window)).unflatten(1, (-1, self.window))
        return x.transpose(2, 3).flatten(3, 4).flatten(0, 2)

    def forward(self, x):
        rows, side, _, width = x.shape
        if self.shift:
            x = torch.roll(x, (-self.shift, -self.shift), (1, 2))
        q, k, v = (
            split_heads(part, self.heads) for part in self.mix(self._windows(x)).chunk(3, -1)
        )
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
        scores = scores + self.near[self.apart].permute(2, 0, 1)[None]
        if self.shift:
            scores = scores.unflatten(0, (rows, -1)) + self.mask[None, :, None]
            scores = scores.flatten(0, 1)
        seen = self.last((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        count = side // self.window
        seen = seen.view(rows, count, count, self.window, self.window, width)
        seen = seen.transpose(2, 3).reshape(x.shape)
        return torch.roll(seen, (self.shift, self.shift), (1, 2)) if self.shift else seen


class SwinBlock(nn.Module):
    def __init__(self, side, width, heads, window, shift, drop):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend = WindowAttention(side, width, heads, window, shift)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = RowDrop(drop)

    def forward(self, x):
        x = x + self.drop(self.attend(self.first(x)))
        return x + self.drop(self.narrow(F.gelu(self.wide(self.second(x)))))


class Merge(nn.Module):
    """Four neighbours become one place of twice the width."""

    def __init__(self, width):
        super().__init__()
        self.norm, self.linear = (
            nn.LayerNorm(4 * width),
            nn.Linear(4 * width, 2 * width, bias=False),
        )

    def forward(self, x):
        corners = [x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)]
        return self.linear(self.norm(torch.cat(corners, -1)))


class Swin(nn.Module):
    """Swin-T at width 96 and windows of 7: 28.3M parameters."""

    def __init__(self, *, size, width, depths, heads, window, drop, classes):
        super().__init__()
        self.patches, self.norm = nn.Conv2d(3, width, 4, 4), nn.LayerNorm(width)
        self.stages, side, made = nn.Sequential(), size // 4, 0
        for index, (depth, count) in enumerate(zip(depths, heads, strict=True)):
            if index:
                self.stages.append(Merge(width))
                side, width = side // 2, 2 * width
            for block in range(depth):
                shift = window // 2 if block % 2 and side > window else 0
                rate = drop * made / (sum(depths) - 1)
                self.stages.append(SwinBlock(side, width, count, window, shift, rate))
                made += 1
        self.last, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, image):
        x = self.stages(self.norm(self.patches(image).permute(0, 2, 3, 1)))
        return self.head(self.last(x).mean((1, 2)))


class Squeeze(nn.Module):
    """Squeeze-and-excitation: every channel is scaled by what the whole image shows."""

    def __init__(self, width, inner):
        super().__init__()
        self.down, self.up = nn.Conv2d(width, inner, 1), nn.Conv2d(inner, width, 1)

    def forward(self, x):
        return x * self.up(F.silu(self.down(F.adaptive_avg_pool2d(x, 1)))).sigmoid()


class SqueezedResidual(nn.Module):
    """EfficientNet's block: wide, depthwise, squeezed, narrow."""

    def __init__(self, inputs, outputs, kernel, stride, expansion, drop):
        super().__init__()
        wide = inputs * expansion
        layers = [ConvNorm(inputs, wide, 1, activation=nn.SiLU)] if expansion > 1 else []
        layers += [
            ConvNorm(wide, wide, kernel, stride, groups=wide, activation=nn.SiLU),
            Squeeze(wide, max(1, inputs // 4)),
            ConvNorm(wide, outputs, 1, activation=None),
        ]
        self.body, self.drop = nn.Sequential(*layers), RowDrop(drop)
        self.is_residual = stride == 1 and inputs == outputs

    def forward(self, x):
        return x + self.drop(self.body(x)) if self.is_residual else self.body(x)


class EfficientNet(nn.Module):
    """EfficientNet-B0: 5.3M parameters at 1000 classes."""

    rows = (
        (1, 3, 16, 1, 1), (6, 3, 24, 2, 2), (6, 5, 40, 2, 2), (6, 3, 80, 3, 2),
        (6, 5, 112, 3, 1), (6, 5, 192, 4, 2), (6, 3, 320, 1, 1),
    )  # fmt: skip

    def __init__(self, classes, repeats=None):
        super().__init__()
        self.stem, inputs = ConvNorm(3, 32, 3, 2, activation=nn.SiLU), 32
        self.blocks, total = nn.Sequential(), sum(row[3] for row in self.rows)
        for expansion, kernel, outputs, count, stride in self.rows:
            for block in range(min(count, repeats or count)):
                first, drop = stride if block == 0 else 1, 0.2 * len(self.blocks) / total
                self.blocks.append(
                    SqueezedResidual(inputs, outputs, kernel, first, expansion, drop)
                )
                inputs = outputs
        self.last = ConvNorm(inputs, 1280, 1, activation=nn.SiLU)
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, classes))

    def forward(self, x):
        return self.head(self.last(self.blocks(self.stem(x))).mean((2, 3)))


def half_layers(width, dropout):
    """One of the two wide parts around a Conformer's attention and convolution."""
    return nn.Sequential(
        nn.LayerNorm(width),
        nn.Linear(width, 4 * width),
        nn.SiLU(),
        nn.Dropout(dropout),
        nn.Linear(4 * width, width),
        nn.Dropout(dropout),
    )


class TimeConvolution(nn.Module):
    """Gated, depthwise over time, BatchNorm."""

    def __init__(self, width, kernel, dropout):
        super().__init__()
        self.first, self.drop = nn.LayerNorm(width), nn.Dropout(dropout)
        self.gated, self.last = nn.Conv1d(width, 2 * width, 1), nn.Conv1d(width, width, 1)
        self.depthwise = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x):
        x = F.glu(self.gated(self.first(x).transpose(1, 2)), 1)
        x = self.last(F.silu(self.norm(self.depthwise(x))))
        return self.drop(x.transpose(1, 2))


class ConformerBlock(nn.Module):
    def __init__(self, width, heads, kernel, dropout):
        super().__init__()
        self.before, self.after = (half_layers(width, dropout) for _ in range(2))
        self.norm, self.last = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.drop = FusedAttention(width, heads), nn.Dropout(dropout)
        self.convolve = TimeConvolution(width, kernel, dropout)

    def forward(self, x):
        x = x + 0.5 * self.before(x)
        x = x + self.drop(self.attend(self.norm(x)))
        x = x + self.convolve(x)
        return self.last(x + 0.5 * self.after(x))


class SpeechEncoder(nn.Module):
    """A Conformer: a quarter as many places as frames of the spectrogram, a unit for each."""

    def __init__(self, *, bands, length, width, heads, depth, kernel, dropout, units):
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv2d(1, width, 3, 2, 1), nn.ReLU(), nn.Conv2d(width, width, 3, 2, 1), nn.ReLU()
        )
        self.narrow, self.drop = nn.Linear(width * (bands // 4), width), nn.Dropout(dropout)
        self.place = nn.Parameter(torch.zeros(1, length // 4, width))
        self.blocks = nn.Sequential(
            *(ConformerBlock(width, heads, kernel, dropout) for _ in range(depth))
        )
        self.head = nn.Linear(width, units)

    def forward(self, frames):
        x = self.front(frames[:, None]).transpose(1, 2).flatten(2)
        return self.head(self.blocks(self.drop(self.narrow(x) + self.place)))


class LstmTagger(nn.Module):
    """A tag for every word, from the words on both sides."""

    def __init__(self, *, symbols, of_word, width, depth, dropout, tags):
        super().__init__()
        self.embed, self.drop = nn.Embedding(symbols, of_word), nn.Dropout(dropout)
        self.lstm = nn.LSTM(
            of_word, width, depth, batch_first=True, dropout=dropout, bidirectional=True
        )
        self.head = nn.Linear(2 * width, tags)

    def forward(self, words):
        return self.head(self.drop(self.lstm(self.drop(self.embed(words)))[0]))


class ConvolutionalVae(nn.Module):
    """Images through a few numbers and back: strided convolutions, then transposed ones."""

    def __init__(self, *, size, widths, latent):
        super().__init__()
        self.down, self.up = nn.Sequential(), nn.Sequential()
        for a, b in pairwise([3, *widths]):
            self._stage(self.down, nn.Conv2d(a, b, 4, 2, 1, bias=False), b)
        for a, b in pairwise([*widths[::-1], widths[0]]):
            self._stage(self.up, nn.ConvTranspose2d(a, b, 4, 2, 1, bias=False), b)
        self.shape = (widths[-1], size // 2 ** len(widths), size // 2 ** len(widths))
        inner = self.shape[0] * self.shape[1] * self.shape[2]
        self.code, self.back = nn.Linear(inner, 2 * latent), nn.Linear(latent, inner)
        self.last = nn.Conv2d(widths[0], 3, 3, padding=1)

    @staticmethod
    def _stage(stages, convolution, width):
        stages.extend([convolution, nn.BatchNorm2d(width), nn.LeakyReLU(0.2, inplace=True)])

    def forward(self, image):
        """(image as it came back, mean, logarithm of the variance)"""
        mean, spread = self.code(self.down(image).flatten(1)).chunk(2, -1)
        drawn = mean + torch.randn_like(mean) * (0.5 * spread).exp()
        return self.last(self.up(self.back(drawn).unflatten(1, self.shape))).tanh(), mean, spread


class MixerBlock(nn.Module):
    """Wide layers over the places of each channel, then over the channels of each place."""

    def __init__(self, places, width):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = self._layers(places, width // 2)
        self.within = self._layers(width, 4 * width)

    @staticmethod
    def _layers(width, wide):
        return nn.Sequential(nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width))

    def forward(self, x):
        x = x + self.across(self.first(x).transpose(1, 2)).transpose(1, 2)
        return x + self.within(self.second(x))


class Mixer(nn.Module):
    """MLP-Mixer B/16 at width 768: 59.9M parameters."""

    def __init__(self, *, size, patch, width, depth, classes):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        places = (size // patch) ** 2
        self.blocks = nn.Sequential(*(MixerBlock(places, width) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, image):
        x = self.patches(image).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(x)).mean(1))


class NeoxBlock(nn.Module):
    """Attention and wide layers side by side; a quarter of each head is rotated."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.last = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, cosine, sine):
        q, k, v = split_heads(self.mix(self.first(x)), self.heads).chunk(3, -1)
        q, k = (self._partly_rotated(part, cosine, sine) for part in (q, k))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        attended = self.last(seen.transpose(1, 2).flatten(2))
        return x + attended + self.narrow(F.gelu(self.wide(self.second(x))))

    @staticmethod
    def _partly_rotated(x, cosine, sine):
        turned, still = x.split([cosine.shape[-1], x.shape[-1] - cosine.shape[-1]], -1)
        return torch.cat([rotated(turned, cosine, sine), still], -1)


class Neox(nn.Module):
    """GPT-NeoX as Pythia-160M has it: 162M parameters, the head is not tied."""

    def __init__(self, *, symbols, length, width, heads, depth):
        super().__init__()
        self.embed = nn.Embedding(symbols, width)
        self.blocks = nn.ModuleList(NeoxBlock(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, symbols, bias=False)
        turned = width // heads // 4
        power = torch.arange(0, turned, 2) / turned
        angles = (torch.arange(length)[:, None] * 10000.0 ** -power[None]).repeat(1, 2)
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, self.cosine, self.sine)
        return self.head(self.norm(x))
