"""Recurrent networks, wide layers over tables, embeddings of a recommender, sets of points."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn


class LstmLanguage(nn.Module):
    def __init__(self, *, symbols, width, depth, dropout):
        super().__init__()
        self.embed, self.drop = nn.Embedding(symbols, width), nn.Dropout(dropout)
        self.lstm = nn.LSTM(width, width, depth, batch_first=True, dropout=dropout)
        self.head = nn.Linear(width, symbols)

    def forward(self, tokens):
        return self.head(self.drop(self.lstm(self.drop(self.embed(tokens)))[0]))


class GruAudio(nn.Module):
    """Frames of a spectrogram through two convolutions and a GRU in both directions."""

    def __init__(self, *, bands, width, depth, classes):
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv1d(bands, width, 5, 2, 2), nn.ReLU(), nn.Conv1d(width, width, 5, 2, 2), nn.ReLU()
        )
        self.gru = nn.GRU(width, width, depth, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, frames):
        return self.head(self.gru(self.front(frames).transpose(1, 2))[0].mean(1))


class WideLayer(nn.Module):
    def __init__(self, inputs, outputs, dropout):
        super().__init__()
        self.linear, self.norm = nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs)
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        return self.drop(F.relu(self.norm(self.linear(x))))


class TableMlp(nn.Module):
    def __init__(self, *, columns, width, depth, dropout, classes):
        super().__init__()
        sizes = [columns, *[width] * depth]
        self.layers = nn.Sequential(*(WideLayer(a, b, dropout) for a, b in pairwise(sizes)))
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.layers(x))


class Recommender(nn.Module):
    """DLRM: a table of embeddings per category, every pair multiplied, wide layers after."""

    def __init__(self, *, tables, rows, width, numbers, wide):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.low = nn.Sequential(
            nn.Linear(numbers, wide), nn.ReLU(), nn.Linear(wide, width), nn.ReLU()
        )
        count = tables + 1
        self.register_buffer("pairs", torch.triu_indices(count, count, 1), persistent=False)
        of_pairs = count * (count - 1) // 2
        self.high = nn.Sequential(
            nn.Linear(width + of_pairs, 2 * wide),
            nn.ReLU(),
            nn.Linear(2 * wide, wide),
            nn.ReLU(),
            nn.Linear(wide, 1),
        )

    def forward(self, categories, numbers):
        low = self.low(numbers)
        found = [table(categories[:, i]) for i, table in enumerate(self.tables)]
        stacked = torch.stack([low, *[part.to(low.dtype) for part in found]], 1)
        products = stacked @ stacked.transpose(1, 2)
        return self.high(torch.cat([low, products[:, self.pairs[0], self.pairs[1]]], 1))[:, 0]


class PointLayer(nn.Module):
    """The same small product for every point."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv, self.norm = nn.Conv1d(inputs, outputs, 1), nn.BatchNorm1d(outputs)

    def forward(self, x):
        return F.relu(self.norm(self.conv(x)))


class PointNet(nn.Module):
    """Points, each by itself, and the largest of all of them."""

    def __init__(self, width, classes):
        super().__init__()
        self.turn = self._per_point(3, width)
        self.angles = nn.Sequential(nn.Linear(16 * width, 4 * width), nn.ReLU())
        self.matrix = nn.Linear(4 * width, 9)
        self.points = self._per_point(3, width)
        self.head = nn.Sequential(
            WideLayer(16 * width, 8 * width, 0.0),
            WideLayer(8 * width, 4 * width, 0.3),
            nn.Linear(4 * width, classes),
        )

    @staticmethod
    def _per_point(inputs, width):
        return nn.Sequential(
            PointLayer(inputs, width),
            PointLayer(width, 2 * width),
            PointLayer(2 * width, 16 * width),
        )

    def forward(self, x):
        turned = self.matrix(self.angles(self.turn(x).amax(2))).view(-1, 3, 3)
        x = torch.bmm(turned + torch.eye(3, device=x.device, dtype=turned.dtype), x)
        return self.head(self.points(x).amax(2))
