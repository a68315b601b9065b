"""Activation checkpointing: a block keeps its inputs only, and backward runs its forward again.

Memory for time, and the bits stay: the second forward draws the same random numbers, sees the
buffers as the first one found them, and leaves no trace in them (BatchNorm's statistics count a
micro-batch once). Names of parameters and buffers stay too, because nothing is wrapped in another
module. Applied before a strategy shards the blocks: its hooks stay around the new forward.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.overrides import _get_current_function_mode_stack
from torch.utils.checkpoint import checkpoint, noop_context_fn

from phalanx.engine.model.blocks import Block

_Place = tuple[nn.Module, str]
"""A buffer: the module that holds it, and its name there."""


def recompute_in_backward(blocks: Iterable[Block], *, watch_buffers: bool = True) -> None:
    """Make every block recompute its activations instead of keeping them. Without `watch_buffers`
    they are changed twice: where they have no values anyway."""
    for _, block in blocks:
        block.forward = _Recomputed(block, watch_buffers=watch_buffers)


class _Recomputed:
    """A block's forward. It stands on the instance, as a user's own patch of `forward` would, and
    a deep copy of the model gets one that belongs to the copy."""

    def __init__(self, block: nn.Module, *, watch_buffers: bool) -> None:
        functools.update_wrapper(self, block.forward)  # keeps the signature for those who look
        self._block = block
        self._forward = block.forward
        self._is_traced = not watch_buffers
        self._changed: list[_Place] | None = None if watch_buffers else []
        """Buffers that forward changes; None before the first call, which finds out."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self._forward(*args, **kwargs)
        count, names = len(args), tuple(kwargs)

        def forward(*values: Any) -> Any:
            named = dict(zip(names, values[count:], strict=True))
            return self._forward(*values[:count], **named)

        # All values by position: torch looks for the devices whose random state it must keep among
        # positional arguments only (2.13). No contexts where none are needed: torch.compile
        # takes none.
        values = (*args, *kwargs.values())
        contexts = self._contexts if self._needs_contexts(values) else noop_context_fn
        if self._is_traced:
            contexts = _modes_again
        return checkpoint(forward, *values, use_reentrant=False, context_fn=contexts)

    def _needs_contexts(self, values: Iterable[Any]) -> bool:
        return self._changed is None or bool(self._changed) or _is_on_mps(values)

    def _contexts(self) -> tuple[_First, _Again]:
        is_first = self._changed is None
        places = _places(self._block) if self._changed is None else self._changed
        before = _Snapshot(places)
        return _First(self, before if is_first else None), _Again(before, places)

    def note(self, before: _Snapshot) -> None:
        """Remember which buffers the first forward changed."""
        self._changed = before.changed()


class _Modes:
    """The function modes of a forward, around its recomputation: backward runs without any (torch
    2.13), and in a trace they stand for what CUDA does."""

    def __init__(self) -> None:
        self._modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
        self._entered = ExitStack()

    def __enter__(self) -> None:
        for mode in self._modes:
            self._entered.enter_context(mode)

    def __exit__(self, *raised: Any) -> None:
        self._entered.close()


def _modes_again() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    return nullcontext(), _Modes()


class _First:
    """Around a forward."""

    def __init__(self, owner: _Recomputed, before: _Snapshot | None) -> None:
        self._owner = owner
        self._before = before

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, *rest: Any) -> None:
        if self._before is not None and kind is None:
            self._owner.note(self._before)


class _Again:
    """Around the recomputation of that forward; entered again when backward runs twice."""

    def __init__(self, before: _Snapshot, places: list[_Place]) -> None:
        self._before = before
        self._places = places
        self._now: _Snapshot | None = None

    def __enter__(self) -> None:
        self._now = _Snapshot(self._places)
        self._before.put_back()

    def __exit__(self, *raised: Any) -> None:
        assert self._now is not None
        self._now.put_back()
        self._now = None


class _Snapshot:
    """Buffers as they are, and the random state of MPS, which torch's checkpoint leaves out."""

    def __init__(self, places: list[_Place]) -> None:
        self._buffers = [
            (place, buffer, buffer.detach().clone(), buffer._version)
            for place in places
            if (buffer := place[0]._buffers[place[1]]) is not None
        ]
        has_mps = torch.backends.mps.is_available()
        self._random = torch.mps.get_rng_state() if has_mps else None

    def put_back(self) -> None:
        for (module, name), buffer, value, _ in self._buffers:
            module._buffers[name] = buffer
            # Through .data: backward may have saved the buffer, and must not take this for a change
            # of the value it needs.
            buffer.data.copy_(value)
        if self._random is not None:
            torch.mps.set_rng_state(self._random)

    def changed(self) -> list[_Place]:
        """Buffers that differ from what they were. BatchNorm's kernel writes without counting up
        the version, and may by chance write what was there."""
        return [
            place
            for place, buffer, value, version in self._buffers
            if isinstance(place[0], _NormBase)
            or place[0]._buffers[place[1]] is not buffer
            or buffer._version != version
            or not torch.equal(buffer, value)
        ]


def _places(block: nn.Module) -> list[_Place]:
    return [(module, name) for module in block.modules() for name in module._buffers]


def _is_on_mps(values: Iterable[Any]) -> bool:
    return any(isinstance(value, Tensor) and value.device.type == "mps" for value in values)
