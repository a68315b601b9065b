"""Micro-batches of `Tensors`: rows of arrays in memory, gathered for many micro-batches at once.

named requests -> ids of a chunk -> one gather an array, where the arrays are kept
    -> one copy to the device, unless they are there already -> views -> change -> weights
A gather, a copy or a view costs a few microseconds whatever its size; a chunk pays them once. What
`change` computes is computed for each micro-batch apart, because a kernel may round the last
elements of an array differently: a chunk begins where a run resumes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import chain, repeat
from math import gcd
from typing import Any, TypeGuard

import numpy as np
import torch

from phalanx.engine.data.device_copies import Copier
from phalanx.engine.data.micro_batches import MicroBatch, Request, move, seed_globals, weigh
from phalanx.engine.data.order import WORKER, Ids
from phalanx.engine.process.group import device_seeder
from phalanx.recipe.interface import Batch, Recipe
from phalanx.recipe.keys import make_key
from phalanx.recipe.tensors import Tensors

_CHUNK_BYTES = 4 << 20  # gathered at once: a millisecond of one core, and little on any device
# Every micro-batch begins where memory from torch would: kernels take another path, with other
# last bits, for tensors that begin elsewhere, and a resumed run has other chunks.
_ALIGNMENT = 64


def is_gathered(data: Any) -> TypeGuard[Tensors]:
    """Whether a data set is `Tensors` and gives its micro-batches as they do."""
    return isinstance(data, Tensors) and type(data).__getitems__ is Tensors.__getitems__


class Gathering:
    """Gathers the micro-batches of one rank."""

    def __init__(
        self,
        recipe: Recipe,
        data: Tensors,
        *,
        seed: int,
        device: torch.device,
        is_kept_on_device: bool,
        pin: bool,
    ) -> None:
        """`is_kept_on_device`: the arrays are copied to the device now, and gathered there."""
        self._recipe = recipe
        self._data = data
        self._seed = seed
        self._device = device
        self._seed_device = device_seeder(device)
        self._is_kept = is_kept_on_device
        self._pin = pin
        self._names = list(data.arrays)
        arrays = list(data.arrays.values())
        self._arrays = [array.to(device) for array in arrays] if is_kept_on_device else arrays
        self._copier = Copier(device) if device.type == "cuda" and not is_kept_on_device else None
        row_bytes = [array[0].numel() * array.element_size() for array in arrays]
        self._row_bytes = max(1, sum(row_bytes))
        # 8 for the keys. All of these are powers of 2: the largest is a multiple of each.
        self._stride = max(_ALIGNMENT // gcd(_ALIGNMENT, size) for size in (*row_bytes, 8))
        self.by_size = weights_by_size(recipe, data)
        """Weights of a micro-batch by its number of samples, where these are all they depend on."""

    def gather(self, named: Iterable[list[Request]]) -> Iterator[MicroBatch]:
        """The micro-batches of named requests, on the device."""
        for together in named:
            largest = max(r.slot.stop - r.slot.start for r in together)
            count = max(1, _CHUNK_BYTES // (largest * self._row_bytes))
            for first in range(0, len(together), count):
                yield from self._chunk(together[first : first + count])

    def _chunk(self, requests: list[Request]) -> Iterator[MicroBatch]:
        lengths, ids, keys = _lay_out(requests, self._stride)
        if self._is_kept:
            index, key_rows = (
                self._pinned(part).to(self._device, non_blocking=True) for part in (ids, keys)
            )
            rows = [array.index_select(0, index) for array in self._arrays]
        else:
            rows, key_rows = [self._gather_here(array, ids) for array in self._arrays], keys
        on_host = self._on_host(rows, ids, keys, lengths)
        copied = None
        if self._copier is not None:
            (rows, key_rows), copied = self._copier.copy((rows, self._pinned(keys)))
            if self._data.change is not None:
                copied.wait()  # the computing stream changes it
                copied = None
        elif not self._is_kept:
            rows, key_rows = move((rows, key_rows), self._device)
        parts = _split([*rows, key_rows], lengths)
        for request, (*tensors, own_keys), host in zip(requests, parts, on_host, strict=False):
            batch = self._changed(request, tensors, own_keys)
            if self.by_size is not None:
                weights = self.by_size(len(own_keys))
            elif host is None:
                weights = weigh(self._recipe, batch)
            else:
                weights = weigh(self._recipe, self._changed(request, host[:-1], host[-1]))
            yield MicroBatch(request.slot.index, batch, own_keys, weights, request.ids, copied)

    def _gather_here(self, array: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        if not self._pin:
            return array.index_select(0, ids)
        out = torch.empty((len(ids), *array.shape[1:]), dtype=array.dtype, pin_memory=True)
        return torch.index_select(array, 0, ids, out=out)

    def _pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.pin_memory() if self._pin else tensor

    def _on_host(
        self, rows: list[torch.Tensor], ids: torch.Tensor, keys: torch.Tensor, lengths: list[int]
    ) -> Iterable[tuple[torch.Tensor, ...] | None]:
        """The micro-batches in host memory, where their weights depend on what is in them: read
        from the device they would make this process wait for it."""
        if self.by_size is not None or self._device.type == "cpu":
            return repeat(None)
        if self._is_kept:
            rows = [array.index_select(0, ids) for array in self._data.arrays.values()]
        return _split([*rows, keys], lengths)

    def _changed(
        self, request: Request, tensors: Sequence[torch.Tensor], keys: torch.Tensor
    ) -> Batch:
        batch = dict(zip(self._names, tensors, strict=True))
        change = self._data.change
        if change is None:
            return batch
        key = make_key(self._seed, WORKER, request.epoch, request.slot.start)
        seed_globals(key)
        if keys.device.type != "cpu":
            self._seed_device(key & 0xFFFFFFFF)
        return change(batch, keys)


def weights_by_size(
    recipe: Recipe, data: Tensors
) -> Callable[[int], dict[str, float] | None] | None:
    """The weights of a micro-batch by its number of samples, or None where they depend on more.

    Found with tensors that have a shape and no values: whoever looks at a value gets an error."""

    @cache
    def weights(samples: int) -> dict[str, float] | None:
        batch: Batch = {
            name: torch.empty((samples, *array.shape[1:]), dtype=array.dtype, device="meta")
            for name, array in data.arrays.items()
        }
        if data.change is not None:
            batch = data.change(batch, torch.empty(samples, dtype=torch.int64, device="meta"))
        return weigh(recipe, batch)

    try:
        weights(2)
    except Exception:
        return None
    return weights


def _lay_out(requests: list[Request], stride: int) -> tuple[list[int], torch.Tensor, torch.Tensor]:
    """Ids and keys of a chunk, each micro-batch at a multiple of `stride` samples, and the lengths
    of micro-batches and gaps in turns. A gap repeats the sample before it."""
    lengths: list[int] = []
    for request in requests:
        size = request.slot.stop - request.slot.start
        lengths += (size, -size % stride)
    lengths[-1] = 0
    ids: list[Ids] = [request.ids for request in requests if request.ids is not None]
    keys: list[Ids] = [request.keys for request in requests if request.keys is not None]
    assert len(ids) == len(keys) == len(requests), "requests without names"
    if any(lengths[1::2]):
        for table in (ids, keys):
            gaps = [part[-1:].repeat(gap) for part, gap in zip(table, lengths[1::2], strict=True)]
            table[:] = chain.from_iterable(zip(table, gaps, strict=True))
    return lengths, _joined(ids, sum(lengths)), _joined(keys, sum(lengths))


def _joined(parts: list[Ids], size: int) -> torch.Tensor:
    joined = torch.empty(size, dtype=torch.int64)  # numpy's own memory is aligned to 16 bytes only
    np.concatenate(parts, out=joined.numpy())
    return joined


def _split(rows: list[torch.Tensor], lengths: list[int]) -> Iterator[tuple[torch.Tensor, ...]]:
    """The micro-batches of a chunk, as views."""
    if any(lengths[1::2]):
        return zip(*(part.split_with_sizes(lengths)[::2] for part in rows), strict=True)
    sizes = lengths[::2]
    return zip(*(part.split_with_sizes(sizes) for part in rows), strict=True)
