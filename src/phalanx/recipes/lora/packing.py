"""Several samples in one row: first fit, in the order of the data, whoever asks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Packed(NamedTuple):
    """Which samples each row holds: `members[starts[i] : starts[i + 1]]`, in their order."""

    members: np.ndarray
    starts: np.ndarray

    def __len__(self) -> int:
        return len(self.starts) - 1

    def of(self, row: int) -> np.ndarray:
        """The samples of a row."""
        return self.members[self.starts[row] : self.starts[row + 1]]


def pack(lengths: np.ndarray, room: int) -> Packed:
    """Put each sample into the first row that has room for it. A tree of the most room in each
    half of the rows finds it: 300,000 samples take a few seconds."""
    size = 1
    while size < max(1, len(lengths)):
        size *= 2
    most = [room] * (2 * size)  # of the nodes; the children of n are 2n and 2n + 1
    row_of = np.empty(len(lengths), np.int64)
    for sample, length in enumerate(lengths.tolist()):
        if length > room:
            raise ValueError(f"sample {sample} has {length} tokens, a row has room for {room}")
        node = 1
        while node < size:
            node *= 2
            if most[node] < length:
                node += 1
        row_of[sample] = node - size
        most[node] -= length
        while node > 1:
            node //= 2
            left, right = most[2 * node], most[2 * node + 1]
            now = max(right, left)
            if most[node] == now:
                break
            most[node] = now
    members = np.argsort(row_of, kind="stable")
    counts = np.bincount(row_of) if len(row_of) else np.empty(0, np.int64)
    return Packed(members, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))
