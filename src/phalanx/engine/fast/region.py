"""A function that may run as compiled code."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch

Change = Callable[[Callable[..., Any]], Callable[..., Any]]


class Region:
    """A function that runs changed while gradients are wanted, and otherwise as it is. On a module
    it stands on the instance, and a deep copy of the model gets one that belongs to the copy."""

    def __init__(self, forward: Callable[..., Any], change: Change) -> None:
        functools.update_wrapper(self, forward)  # keeps the signature for those who look
        self._forward = forward
        self._change = change
        self._changed = self._trained = change(forward)
        self.is_compiled = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.is_compiled and torch.is_grad_enabled():
            return self._changed(*args, **kwargs)
        return self._forward(*args, **kwargs)

    def draw_as_written(self, change: Change) -> None:
        if self._change is not torch._dynamo.disable:
            self._changed = change(self._forward)

    def draw_as_trained(self) -> None:
        self._changed = self._trained

    def __deepcopy__(self, memo: dict[int, Any]) -> Region:
        copied = Region(copy.deepcopy(self._forward, memo), self._change)
        copied.is_compiled = self.is_compiled
        return copied
