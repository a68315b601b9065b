"""Optional interfaces of a recipe: a class implements one by inheriting it, or by defining one of
its methods, as recipes of version 0.1 do."""

from __future__ import annotations

import inspect
from abc import ABC
from typing import Any


class OptionalInterface(ABC):  # noqa: B024 - every method has a default
    """Base of the optional interfaces. Their methods have defaults, so that any part may be left
    out."""

    @classmethod
    def __subclasshook__(cls, kind: type) -> Any:
        if OptionalInterface not in cls.__bases__:  # a recipe that inherits an interface
            return NotImplemented
        return bool(defined_members(kind, cls)) or NotImplemented


def members_of(interface: type) -> dict[str, object]:
    """Return the methods and class attributes of an interface, with their defaults."""
    return {name: value for name, value in vars(interface).items() if not name.startswith("_")}


def defined_members(kind: type, interface: type) -> list[str]:
    """Return the members of an interface that a class has, other than the defaults."""
    return [
        name
        for name, default in members_of(interface).items()
        if inspect.getattr_static(kind, name, default) is not default
    ]
