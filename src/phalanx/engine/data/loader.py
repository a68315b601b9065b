"""Micro-batches fetched here or in loader processes, in the order they are asked for."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

import torch
from torch.utils.data import DataLoader, Sampler

from phalanx.engine.data.micro_batches import Fetcher, MicroBatch, Request, map_tensors

# Forked loader processes start in milliseconds and need no pickling of the data set. Python 3.14
# starts them through a server instead (forkserver), which costs an import of torch for each.
_START_METHOD = "fork" if sys.platform == "linux" else None


class Loader:
    """Micro-batches in the order of the requests, fetched here or in loader processes.

    It can be iterated again when the requests can; loader processes are then kept."""

    def __init__(
        self,
        fetcher: Fetcher,
        requests: Iterable[Request],
        *,
        workers: int,
        prefetch: int,
        pin: bool,
        is_repeated: bool = False,
    ) -> None:
        self._fetcher = fetcher
        self._requests = requests
        self._pin = pin
        self._started: Iterator[MicroBatch] | None = None
        self._loader: DataLoader[MicroBatch] | None = None
        if workers > 0:
            self._loader = DataLoader(
                fetcher,
                batch_size=None,
                sampler=_Requests(requests),
                num_workers=workers,
                prefetch_factor=prefetch,
                pin_memory=pin,
                persistent_workers=is_repeated,
                multiprocessing_context=_START_METHOD,
            )

    def start(self) -> None:
        """Start the loader processes now instead of at the first iteration."""
        if self._loader is not None:
            self._started = iter(self._loader)

    def __iter__(self) -> Iterator[MicroBatch]:
        if self._started is not None:
            started, self._started = self._started, None
            return started
        if self._loader is not None:
            return iter(self._loader)
        fetched = (self._fetcher[request] for request in self._requests)
        return (map_tensors(m, torch.Tensor.pin_memory) for m in fetched) if self._pin else fetched


class _Requests(Sampler[Request]):
    def __init__(self, requests: Iterable[Request]) -> None:
        self._requests = requests

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)
