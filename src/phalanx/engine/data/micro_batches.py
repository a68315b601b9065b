"""From positions to micro-batches: fetch by ids and keys, loader processes, one step ahead.

requests -> [loader processes: fetch, weigh] -> device (copying.py) -> Feed: weights over all ranks
Arrays in memory take another way (gathering.py).
"""

from __future__ import annotations

import inspect
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch.utils.data import Dataset, default_collate

from phalanx.engine.data.order import WORKER, Ids, ids_at, ids_of, keys_of
from phalanx.errors import Finding, UserError
from phalanx.planner.schema.micro_batches import Slot, StepShare
from phalanx.recipe.interface import Batch, Epoch, Recipe
from phalanx.recipe.keys import make_key

# A wish to stop or to save waits this long for the other ranks to hear of it. A reduction of gloo
# takes a tenth of a millisecond from every core: as much as a small step.
_ASKED_EVERY_S, _MOST_STEPS = 0.2, 50
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
    copied: Any = None
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
    """The same nesting of dict, list and tuple with a function applied to every tensor."""
    if isinstance(tree, torch.Tensor):
        return function(tree)
    if isinstance(tree, Mapping):
        return {name: map_tensors(value, function) for name, value in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_tensors(value, function) for value in tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)(map_tensors(value, function) for value in tree)
    return tree


@dataclass(slots=True)
class StepInput:
    """All that a rank needs for one optimizer step."""

    share: StepShare
    micro_batches: list[MicroBatch]
    weights: dict[str, float] | None
    """Weight of each term over the whole global batch, known before the first forward."""
    must_stop: bool
    """All ranks agree not to run this step: somebody asked to stop."""
    must_save: bool
    """All ranks agree that it is time to save before this step."""
    waited_s: float = 0.0
    """Seconds that this process waited for the samples fetched meanwhile."""


class Feed:
    """Yields the steps of one rank, each fetched while the one before it computes.

    The weights of the global batch, and the wishes to stop and to save, are summed over the ranks
    in one small asynchronous reduction on the CPU, one step ahead: no rank ever waits for it
    unless it is a step ahead of another. Where every rank knows the weights by itself, wishes alone
    are asked for now and then.
    """

    def __init__(
        self,
        shares: Iterable[StepShare],
        loader: Iterator[MicroBatch],
        *,
        terms: list[str] | None,
        reduce: Callable[[torch.Tensor], Any] | None,
        wishes: Callable[[StepShare], tuple[bool, bool]],
        known_weights: Callable[[StepShare], list[float]] | None = None,
        stop_at: int | None = None,
        is_first: bool = True,
    ) -> None:
        """`loader` gives micro-batches on the device; `reduce` is None on one rank.
        `known_weights` gives those of the whole step, if that can be told without the other ranks;
        `stop_at` is the step at which every rank wants to stop."""
        self._shares = iter(shares)
        self._loader = loader
        self._terms = terms
        self._names = frozenset(terms or ())
        self._reduce = reduce
        self._wishes = wishes
        self._known_weights = known_weights
        self._stop_at = stop_at
        self._is_first = is_first
        self._interval, self._due_at = 1, 0
        self._asked: tuple[int, float] | None = None
        self._unheard = (False, False)
        self._waited_s = 0.0

    def __iter__(self) -> Iterator[StepInput]:
        terms, ahead = self._terms, self._fetch()
        while ahead is not None:
            share, micro_batches, figures = ahead
            ahead = self._fetch()
            values = figures()
            for micro_batch in micro_batches:
                if micro_batch.copied is not None:
                    micro_batch.copied.wait()  # the computing stream does, not this process
            yield StepInput(
                share,
                micro_batches,
                None if terms is None else dict(zip(terms, values, strict=False)),
                values[-2] > 0,
                values[-1] > 0,
                self._waited_s,
            )

    def _fetch(self) -> tuple[StepShare, list[MicroBatch], Callable[[], list[float]]] | None:
        self._waited_s = 0.0
        share = next(self._shares, None)
        if share is None:
            return None
        loader = self._loader
        asked_s = time.perf_counter()
        micro_batches = [next(loader) for _ in share.slots]
        self._waited_s = time.perf_counter() - asked_s
        stop, save = self._wishes(share)
        values = [*self._local_weights(micro_batches), float(stop), float(save)]
        if self._reduce is None:
            return share, micro_batches, lambda: values
        if self._known_weights is not None:
            values[:-2] = self._known_weights(share)
            is_end = self._stop_at is not None and share.step >= self._stop_at
            if is_end or share.step < self._due_at:
                self._unheard = (stop or self._unheard[0], save or self._unheard[1])
                values[-2:] = float(is_end), 0.0
                return share, micro_batches, lambda: values
            values[-2:] = float(stop or self._unheard[0]), float(save or self._unheard[1])
            self._unheard = (False, False)
        return share, micro_batches, self._ask(share.step, values)

    def _ask(self, step: int, values: list[float]) -> Callable[[], list[float]]:
        """Start to sum over the ranks; returns what waits for the sums."""
        assert self._reduce is not None
        # The ranks ask again at the same step: as many later as the first rank says.
        figures = torch.tensor([*values, self._next_interval(step)], dtype=torch.float64)
        pending = self._reduce(figures)
        self._due_at = step + self._interval

        def read() -> list[float]:
            if pending is not None:
                pending.wait()
            *summed, interval = figures.tolist()
            self._interval = max(1, int(interval))
            if self._known_weights is not None:
                summed[:-2] = values[:-2]
            return summed

        return read

    def _next_interval(self, step: int) -> float:
        if not self._is_first:
            return 0.0
        asked, self._asked = self._asked, (step, time.perf_counter())
        if asked is None:
            return 1.0
        step_s = (self._asked[1] - asked[1]) / (step - asked[0])
        # No more than twice as many: the first two are fetched before the first is computed, and
        # taking that for a step's time would leave slow ranks deaf for minutes.
        most = min(_MOST_STEPS, 2 * self._interval)
        return float(min(most, max(1, _ASKED_EVERY_S // max(step_s, 1e-6))))

    def _local_weights(self, micro_batches: list[MicroBatch]) -> list[float]:
        if self._terms is None:
            return []
        for micro_batch in micro_batches:
            if (micro_batch.weights or {}).keys() != self._names:
                raise UserError(_terms_changed(self._terms, sorted(micro_batch.weights or ())))
        return [sum(m.weights[term] for m in micro_batches if m.weights) for term in self._terms]


def _terms_changed(before: list[str], now: list[str]) -> Finding:
    return Finding(
        slug="weights-changed",
        what="weight() names other terms than it did for the first micro-batch",
        why=f"first {', '.join(before)}; now {', '.join(now) or 'none'}",
        fix="return every term from weight(batch), with weight 0 where it does not apply",
    )
