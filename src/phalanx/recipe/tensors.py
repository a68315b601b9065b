"""Data that is arrays in memory: `Tensors({"image": images, "label": labels})`.

torch is imported inside functions: options of a recipe are read and judged without it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from phalanx.errors import Finding, UserError
from phalanx.recipe.keys import Keys

if TYPE_CHECKING:
    from torch import Tensor

Change = Callable[[dict[str, Any], Any], Any]
"""From a micro-batch and its keys to the batch that `loss` gets."""


class Tensors:
    """Arrays of equal length, of which sample `i` is row `i`; a micro-batch is a dict of tensors.

    The arrays are numpy's, also memory-mapped, or torch's; they are not copied. The engine gathers
    many micro-batches at once, and on a GPU keeps arrays that are small there.

    `change(batch, keys)` may alter a micro-batch, such as to augment it: tensors and keys are where
    the model is, on the GPU too. It takes its randomness from the keys (see `phalanx.recipe.keys`),
    and what it makes of a sample does not depend on the others.
    """

    def __init__(self, arrays: Mapping[str, Any], *, change: Change | None = None) -> None:
        self.arrays: dict[str, Tensor] = {name: _tensor(array) for name, array in arrays.items()}
        self.change = change
        lengths = {name: len(array) for name, array in self.arrays.items()}
        if len(set(lengths.values())) != 1:
            raise UserError(_unequal(lengths))
        self._size = next(iter(lengths.values()))

    def __len__(self) -> int:
        return self._size

    def __getitems__(self, ids: np.ndarray, keys: Keys) -> Any:
        import torch

        index = torch.from_numpy(np.asarray(ids, dtype=np.int64))
        batch = {name: array.index_select(0, index) for name, array in self.arrays.items()}
        if self.change is None:
            return batch
        return self.change(batch, torch.from_numpy(np.asarray(keys, dtype=np.int64)))

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """A sample as it is stored, for a look at the data."""
        if not -self._size <= index < self._size:
            raise IndexError(index)
        return {name: array[index] for name, array in self.arrays.items()}

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return (self[index] for index in range(self._size))

    @property
    def num_bytes(self) -> int:
        """Of all arrays."""
        return sum(array.numel() * array.element_size() for array in self.arrays.values())


def _tensor(array: Any) -> Tensor:
    import torch

    if isinstance(array, torch.Tensor):
        return array.contiguous()
    with warnings.catch_warnings():  # nobody writes to a file that is mapped for reading
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(np.ascontiguousarray(array))


def _unequal(lengths: dict[str, int]) -> Finding:
    return Finding(
        slug="tensors-length",
        what="the arrays of Tensors(...) differ in length, or there are none",
        why=", ".join(f"{name}: {length}" for name, length in lengths.items()) or "no arrays",
        fix="give one row per sample in every array: Tensors({'x': x, 'y': y}) with len(x) == "
        "len(y)",
    )
