"""What the ranks of a run are started for: `purpose.json` in its directory, none where they train.

`bench`, `evaluate` and `verify` write it into run directories of their own before ranks start, so
that it reaches them in whatever way they are started.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

from phalanx.codec import from_json, to_json
from phalanx.run.directory import RunDirectory, write_atomic


@dataclass(frozen=True)
class Train:
    """Train the model, and save it."""

    kind: Literal["train"] = "train"


@dataclass(frozen=True)
class Measure:
    """Measure the machine, then a step at each of these micro-batches."""

    micro_batches: tuple[int, ...]
    kind: Literal["measure"] = "measure"


@dataclass(frozen=True)
class Evaluate:
    """Evaluate the model in a file."""

    file: str
    kind: Literal["evaluate"] = "evaluate"


@dataclass(frozen=True)
class Record:
    """Train, save nothing, and write down what is computed."""

    has_dropout: bool = True
    """False: dropout is disabled, whose masks follow the micro-batches."""
    kind: Literal["record"] = "record"


Purpose = Train | Measure | Evaluate | Record
TRAIN = Train()


@dataclass(frozen=True)
class _File:
    purpose: Purpose


def write_purpose(run: RunDirectory, purpose: Purpose) -> None:
    """Write what the next ranks of a run are started for."""
    if isinstance(purpose, Train):
        run.purpose_file.unlink(missing_ok=True)
    else:
        write_atomic(run.purpose_file, json.dumps(to_json(_File(purpose))))


def read_purpose(run: RunDirectory) -> Purpose:
    """Read what the ranks of a run are started for; raises ValueError where that is damaged."""
    try:
        text = run.purpose_file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return TRAIN
    return from_json(_File, json.loads(text)).purpose
