"""Values of a job that are written in a way of their own: `2 epochs`, `5%`, `on`, `ram`."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, WithJsonSchema

Unit = Literal["steps", "epochs", "minutes", "percent"]

_INTERVAL = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(steps?|epochs?|minutes?|min|%|percent)?\s*$")
_UNITS: dict[str, Unit] = {
    "step": "steps",
    "epoch": "epochs",
    "minute": "minutes",
    "min": "minutes",
    "%": "percent",
    "percent": "percent",
}


class Strict(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True
    )


class Interval(Strict):
    """A length of training: `500 steps`, `2 epochs`, `10 minutes` or `5%` of all steps."""

    count: float
    unit: Unit

    def __str__(self) -> str:
        number = int(self.count) if self.count == int(self.count) else self.count
        return f"{number}%" if self.unit == "percent" else f"{number} {self.unit}"


def parse_interval(value: Any) -> Any:
    """Turn `500`, `"2 epochs"` or `"5%"` into an Interval; a bare number counts steps."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return value
    match = _INTERVAL.match(str(value))
    if match is None:
        raise ValueError(
            f"{value!r} is no interval; write `500 steps`, `2 epochs`, `10 minutes` or `5%`"
        )
    word = match[2] or "steps"
    unit = _UNITS[word if word in _UNITS else word.removesuffix("s")]
    return Interval(count=float(match[1]), unit=unit)


Every = Annotated[
    Interval,
    BeforeValidator(parse_interval),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": ["string", "integer"], "examples": ["500 steps", "2 epochs"]}),
]


def parse_switch(value: Any) -> Any:
    """Turn `true` and `false` into `on` and `off`: many YAML readers take the words for them."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


Switch = Annotated[
    Literal["auto", "on", "off"],
    BeforeValidator(parse_switch),
    WithJsonSchema({"enum": ["auto", "on", "off", True, False]}),
]


Fast = Annotated[
    Literal["auto", "off"],
    BeforeValidator(parse_switch),
    WithJsonSchema({"enum": ["auto", "off", False]}),
]


def parse_cache(value: Any) -> Any:
    """Turn `true` and `false` into `ram` and `off`."""
    return {True: "ram", False: "off"}[value] if isinstance(value, bool) else value


Cache = Annotated[
    Literal["off", "ram", "disk"],
    BeforeValidator(parse_cache),
    WithJsonSchema({"enum": ["off", "ram", "disk", True, False]}),
]
