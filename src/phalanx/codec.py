"""Frozen objects as JSON and back: the one codec of files, events and messages.

Dataclasses become objects, NamedTuples lists, enums their values and paths strings. Types are
checked on the way in; a field that this version does not know is ignored, and one that is missing
takes its default. Wrong or missing values raise ValueError.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import isfinite
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

T = TypeVar("T")
Json = Any
"""A value that `json.dumps` takes and `json.loads` returns."""


def to_json(value: Any) -> Json:
    """Return an object as plain JSON values; NaN and infinities stay floats."""
    return to_jsonable_python(value, inf_nan_mode="constants")


def from_json(kind: type[T], record: Json) -> T:
    """Return the object that a JSON value holds; raises ValueError if it holds another."""
    try:
        value: T = _adapter(kind).validate_python(record)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{place}: {first['msg']}" if place else first["msg"]) from None
    return value


def finite(value: Json) -> Json:
    """Return a JSON value with null for NaN and infinities, which JSON itself has no word for."""
    if isinstance(value, dict):
        return {name: finite(one) for name, one in value.items()}
    if isinstance(value, list):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not isfinite(value) else value


_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)
