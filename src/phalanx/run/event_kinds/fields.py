"""How fields of events are written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, field, fields
from functools import cache
from typing import Any

_IS_WRITTEN = "is_written"


def since(default: Any) -> Any:
    """Return a field that runs of version 0.1 lack: always written, and read as this there."""
    return field(default=default, metadata={_IS_WRITTEN: True})


def _names(kind: type[Any]) -> frozenset[str]:
    return frozenset(one.name for one in fields(kind))


def _omitted(kind: type[Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(
        (one.name, one.default)
        for one in fields(kind)
        if one.default is not MISSING and not one.metadata.get(_IS_WRITTEN)
    )


field_names: Callable[[Any], frozenset[str]] = cache(_names)
"""Names of the fields of a kind."""
omitted: Callable[[Any], tuple[tuple[str, Any], ...]] = cache(_omitted)
"""Fields that a line leaves out where they have their default."""
