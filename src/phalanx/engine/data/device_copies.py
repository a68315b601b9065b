"""Micro-batches on their way to the device: on CUDA on a stream of their own, one step ahead.

The computing stream waits for the copy of a step when that step begins (`Feed`), not before: the
copy runs beside the step before it. Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from phalanx.engine.data.micro_batches import MicroBatch, map_tensors, move


class Copier:
    """Copies to one CUDA device, beside what computes there."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def copy(self, tree: Any) -> tuple[Any, torch.cuda.Event]:
        """The same nesting on the device, and the event after which it is there."""
        computing = torch.cuda.current_stream(self._device)

        def copy(tensor: torch.Tensor) -> torch.Tensor:
            copied = tensor.to(self._device, non_blocking=True)
            # Its memory belongs to the copying stream; it is given out again once the computing
            # one is done with it too.
            copied.record_stream(computing)
            return copied

        with torch.cuda.stream(self._stream):
            copied = map_tensors(tree, copy)
            event: torch.cuda.Event = self._stream.record_event()
        return copied, event


def to_device(loader: Iterator[MicroBatch], device: torch.device) -> Iterator[MicroBatch]:
    """The micro-batches on the device."""
    if device.type == "cpu":
        return loader
    if device.type == "cuda":
        copier = Copier(device)
        copies = (copier.copy(micro_batch) for micro_batch in loader)
        return (micro_batch._replace(copied=event) for micro_batch, event in copies)
    return (move(micro_batch, device) for micro_batch in loader)
