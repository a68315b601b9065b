"""Many things named in one line of a message."""

from __future__ import annotations

from collections.abc import Sequence

_NAMED = 5


def first_few(things: Sequence[str], total: int | None = None, *, between: str = "; ") -> str:
    """Return the first few of many, and how many more there are. `total` counts also those that are
    not among `things`."""
    named = between.join(things[:_NAMED])
    more = (len(things) if total is None else total) - _NAMED
    if more <= 0:
        return named
    return f"{named}; and {more:,} more" if between == "; " else f"{named} and {more:,} more"
