"""Objects as JSON and back."""

import json
import math
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import pytest

from phalanx.codec import finite, from_json, to_json

T = TypeVar("T")


class Line(NamedTuple):
    fixed: int
    per_sample: int


class Phase(IntEnum):
    STEP = 2


@dataclass(frozen=True)
class Choice(Generic[T]):
    value: T
    reason: str


@dataclass(frozen=True, kw_only=True)
class Everything:
    count: Choice[int]
    rate: Choice[float | None] = Choice(None, "not known")
    lines: dict[str, list[Line]] = field(default_factory=dict)
    phase: Phase = Phase.STEP
    file: Path | None = None
    shape: tuple[int, ...] = ()


FULL = Everything(
    count=Choice(3, "asked"),
    rate=Choice(0.5, "measured"),
    lines={"bf16": [Line(1, 2), Line(3, 4)]},
    file=Path("weights/best.pt"),
    shape=(2, 3),
)


def through_text(value):
    return from_json(type(value), json.loads(json.dumps(to_json(value))))


def test_every_type_comes_back_equal():
    assert through_text(FULL) == FULL
    assert isinstance(through_text(FULL).lines["bf16"][0], Line)


def test_numbers_that_are_not_finite_stay():
    rate = through_text(Everything(count=Choice(1, ""), rate=Choice(math.inf, ""))).rate
    assert rate.value == math.inf
    nan = through_text(Everything(count=Choice(1, ""), rate=Choice(math.nan, ""))).rate
    assert math.isnan(nan.value)


def test_numbers_that_are_not_finite_stay_where_no_type_is_known():
    @dataclass(frozen=True)
    class Loose:
        options: dict[str, Any]

    record = to_json(Loose({"clip": math.inf, "deep": [math.nan]}))
    assert record["options"]["clip"] == math.inf
    assert math.isnan(record["options"]["deep"][0])


def test_a_field_of_a_newer_version_is_ignored_and_a_missing_one_has_its_default():
    record = {"count": {"value": 1, "reason": "", "source": "new"}, "novelty": 1}
    assert from_json(Everything, record) == Everything(count=Choice(1, ""))


@pytest.mark.parametrize("record", [{}, {"count": 1}, {"count": {"value": "x", "reason": ""}}, []])
def test_what_holds_another_object_is_a_value_error(record):
    with pytest.raises(ValueError):
        from_json(Everything, record)


def test_the_error_is_one_line_that_names_the_place():
    with pytest.raises(ValueError) as caught:
        from_json(Everything, {"count": {"value": "x", "reason": ""}})
    assert str(caught.value).startswith("count.value: ")
    assert "\n" not in str(caught.value)


def test_what_is_not_finite_becomes_null():
    value = {"a": [1.5, math.nan, {"b": -math.inf}], "c": "inf", "d": None}
    assert finite(value) == {"a": [1.5, None, {"b": None}], "c": "inf", "d": None}
