"""What the ranks of `phalanx bench` write."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.codec import Json


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """`bench` begins to measure something."""

    what: str
    """what `bench` measures from here on"""


@dataclass(frozen=True, kw_only=True)
class DeviceMeasured:
    """`bench` has measured the device."""

    calibration: Json
    """what `bench` measured of the device"""


@dataclass(frozen=True, kw_only=True)
class SizeMeasured:
    """`bench` has measured a micro-batch."""

    micro_batch: int
    """samples per forward on one rank"""
    step: Json
    """time by part and memory of a step, or null"""
    missing: str | None
    """why there is none: `memory` ran out, too few `samples`"""
    notes: list[str]
    """what to keep in mind about the figures"""
