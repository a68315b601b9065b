"""From positions to micro-batches: fetch by ids and keys.

requests -> [loader processes: fetch, weigh] -> device (device_copies.py) -> Feed (step_feed.py)
Arrays in memory take another way (array_feed.py).
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby, islice
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch.utils.data import Dataset, default_collate

from phalanx.engine.data.order import WORKER, Ids, ids_at, ids_of, keys_of
from phalanx.planner.schema.micro_batches import Slot
from phalanx.recipe.interface import Batch, Epoch, Recipe
from phalanx.recipe.keys import make_key

_NAMED_AT_ONCE = 64  # requests whose samples are found together

ONLY_EPOCH = Epoch(0, 1)

ANY_TERM = "*"
"""Name under which a recipe's single weight stands for every term of its loss."""


class Request(NamedTuple):
    """A micro-batch to fetch."""

    epoch: int
    slot: Slot
    is_training: bool
    ids: Ids | None = None
    """The samples, where they are known already; else the fetcher finds them."""
    keys: Ids | None = None
    """Their keys, known with them."""


class MicroBatch(NamedTuple):
    """A fetched micro-batch."""

    slot: int
    batch: Batch
    keys: torch.Tensor
    weights: dict[str, float] | None
    """Weight of each term, or None when it depends on the predictions."""
    ids: Ids | None = None
    """The samples asked for."""
    copied: torch.cuda.Event | None = None
    """CUDA event after which it is on the device; None: nothing to wait for."""


class Fetcher(Dataset[MicroBatch]):
    """Fetches whole micro-batches; runs in the training process or in loader processes."""

    def __init__(
        self, recipe: Recipe, data: Any, *, seed: int, is_shuffled: bool, epochs: int = 1
    ) -> None:
        """`epochs` is how many the whole run has."""
        self._epochs = epochs
        self.recipe = recipe
        self.data = data
        self._seed = seed
        self._size = len(data)
        self._is_shuffled = is_shuffled
        self._fetch = choose_fetch(data)

    def __getitem__(self, request: Request) -> MicroBatch:
        epoch, slot, is_training, ids, keys = request
        if ids is not None:
            pass
        elif self._is_shuffled:
            ids = ids_at(self._seed, epoch, slot.start, slot.stop, self._size)
        else:
            ids = np.arange(slot.start, slot.stop, dtype=np.int64)
        if keys is None:
            keys = keys_of(self._seed, epoch, ids)
        seed_globals(make_key(self._seed, WORKER, epoch, slot.start))
        try:
            batch = self._fetch(ids, keys, Epoch(epoch, self._epochs))
        except Exception as error:
            _name_samples_in(error, ids)
            raise
        weights = weigh(self.recipe, batch) if is_training else None
        return MicroBatch(slot.index, batch, torch.from_numpy(keys), weights, ids)


def seed_globals(key: int) -> None:
    """Seed every global generator before a fetch.

    A data set that draws from them instead of from its keys is thereby tied to the micro-batch,
    and not to the process that happens to fetch it."""
    seed = key & 0xFFFFFFFF
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)


class Fetch(Protocol):
    """Makes a micro-batch of samples; without an epoch it is one of the first of one."""

    def __call__(self, ids: Ids, keys: Ids, epoch: Epoch = ..., /) -> Batch: ...


def choose_fetch(data: Any) -> Fetch:
    """How this data set wants to be asked: batched with keys and epoch, batched with keys, batched,
    single with key, single."""
    if hasattr(data, "__getitems__"):
        if takes(data.__getitems__, 3):
            return lambda ids, keys, epoch=ONLY_EPOCH: data.__getitems__(ids, keys, epoch)
        if takes(data.__getitems__, 2):
            return lambda ids, keys, epoch=ONLY_EPOCH: data.__getitems__(ids, keys)
        return lambda ids, keys, epoch=ONLY_EPOCH: default_collate(data.__getitems__(ids.tolist()))
    if takes(data.__getitem__, 2):
        return lambda ids, keys, epoch=ONLY_EPOCH: default_collate(
            [
                _fetch_one(data.__getitem__, i, k)
                for i, k in zip(ids.tolist(), keys.tolist(), strict=True)
            ]
        )
    return lambda ids, keys, epoch=ONLY_EPOCH: default_collate(
        [_fetch_one(data.__getitem__, i) for i in ids.tolist()]
    )


def _fetch_one(fetch: Callable[..., Any], sample: int, *key: int) -> Any:
    try:
        return fetch(sample, *key)
    except Exception as error:
        _name_samples_in(error, [sample])
        raise


def _name_samples_in(error: Exception, ids: Iterable[int]) -> None:
    """Note on an exception which samples were asked for: it is printed with the traceback, also by
    loader processes. Of a single sample it is noted once."""
    names = [str(int(i)) for i in islice(ids, _NAMED_AT_ONCE)]
    if not any("while fetching sample" in note for note in getattr(error, "__notes__", ())):
        which = f"sample {names[0]}" if len(names) == 1 else f"samples {', '.join(names)}"
        error.add_note(f"phalanx: while fetching {which}")


def takes(method: Callable[..., Any], count: int) -> bool:
    """Whether a method can be called with so many arguments."""
    try:
        inspect.signature(method).bind(*range(count))
    except (TypeError, ValueError):
        return False
    return True


def weigh(recipe: Recipe, batch: Batch) -> dict[str, float] | None:
    """The weights of a micro-batch by term name."""
    weight = recipe.weight(batch)
    if weight is None:
        return None
    if isinstance(weight, Mapping):
        return {name: float(value) for name, value in weight.items()}
    return {ANY_TERM: float(weight)}


def name_samples(requests: Iterable[Request], *, seed: int, size: int) -> Iterator[list[Request]]:
    """The same requests with their sample ids and keys, some at a time: both cost thirty array
    operations however long the arrays are. Those of a list are of one epoch."""
    requests = iter(requests)
    while chunk := list(islice(requests, _NAMED_AT_ONCE)):
        for epoch, group in groupby(chunk, key=lambda request: request.epoch):
            together = list(group)
            ranges = [np.arange(r.slot.start, r.slot.stop, dtype=np.int64) for r in together]
            ids = ids_of(seed, epoch, np.concatenate(ranges), size)
            keys = keys_of(seed, epoch, ids)
            named, start = [], 0
            for _, slot, is_training, *_ in together:
                stop = start + slot.stop - slot.start
                named.append(Request(epoch, slot, is_training, ids[start:stop], keys[start:stop]))
                start = stop
            yield named


def move(tree: Any, device: torch.device) -> Any:
    """The same nesting with every tensor on the device; pinned memory is copied asynchronously."""
    if device.type == "cpu":
        return tree  # where it was fetched
    return map_tensors(tree, lambda tensor: tensor.to(device, non_blocking=True))


def map_tensors(tree: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same nesting of dict, list and tuple with a function applied to every tensor. Not torch's
    pytree, which takes a mapping of a class of its own, as tokenizers give, for a leaf."""
    if isinstance(tree, torch.Tensor):
        return function(tree)
    if isinstance(tree, Mapping):
        return {name: map_tensors(value, function) for name, value in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_tensors(value, function) for value in tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)(map_tensors(value, function) for value in tree)
    return tree
