"""The heart of this rank: its training thread says where it is, and no other thread does.

One per process, as there is one training thread. Until it is told where to write nobody looks at
it: in a rank of torchrun's, in a test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

from phalanx.run.heartbeat import Heart, Part, Phase

_Item = TypeVar("_Item")
HEART = Heart()


def fetching(items: Iterator[_Item]) -> Iterator[_Item]:
    """The same items; waiting for one of them is a part of its own."""
    at = HEART.at
    while True:
        at(Part.DATA)
        try:
            item = next(items)
        except StopIteration:
            return
        at(Part.AGREE)
        yield item


def notice_compiling() -> None:
    """A compilation in the middle of a step, for a shape that is new, is no step that hangs."""
    with suppress(ImportError, AttributeError):  # as torch has it since 2.4
        from torch._dynamo.callback import callback_handler

        inside: list[Any] = []

        def begin(*_: Any) -> None:
            context = HEART.during(Phase.COMPILE)
            context.__enter__()
            inside.append(context)

        def end(*_: Any) -> None:
            if inside:
                inside.pop().__exit__(None, None, None)

        register: Callable[[Any], Any] = callback_handler.register_start_callback
        register(begin)
        callback_handler.register_end_callback(end)
