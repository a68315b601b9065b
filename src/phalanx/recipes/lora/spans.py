"""Where answers begin and end: in a rendered text, and in its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

Span = tuple[int, int]
"""First, and one past the last."""


class Refused(NamedTuple):
    """A sample the template cannot render: the kind of fault, and what is so in this one."""

    wrong: str
    detail: str


class Rendered(NamedTuple):
    """A sample as text, with the parts that are learned."""

    text: str
    spans: list[Span]


def answers_in(whole: str | Refused, parts: Sequence[str | Refused]) -> Rendered | Refused:
    """`parts` are, for each answer, the text before it and the text up to its end."""
    texts = [whole, *parts]
    refused = next((text for text in texts if isinstance(text, Refused)), None)
    if refused is not None:
        return refused
    strings = [str(text) for text in texts]
    chain = [*strings[1:], strings[0]]
    for shorter, longer in pairwise(chain):
        if not longer.startswith(shorter):
            at = next(
                (i for i, (a, b) in enumerate(zip(shorter, longer, strict=False)) if a != b),
                min(len(shorter), len(longer)),
            )
            detail = f"{shorter[at : at + 40]!r} becomes {longer[at : at + 40]!r}"
            return Refused("are rendered otherwise when more is said later", detail)
    spans = [(len(a), len(b)) for a, b in zip(strings[1::2], strings[2::2], strict=True)]
    return Rendered(strings[0], spans)


def tokens_of(batch: Any, place: int, span: Span) -> Span:
    """The tokens that hold any character of a span; those of spaces may hold none."""
    start, stop = span
    first = last = None
    while start < stop and (first := batch.char_to_token(place, start)) is None:
        start += 1
    while start < stop and (last := batch.char_to_token(place, stop - 1)) is None:
        stop -= 1
    return (first, last + 1) if first is not None and last is not None else (0, 0)
