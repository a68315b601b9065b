"""The kinds of events of a run, one frozen dataclass each.

The docstring under a field is its meaning in docs/reference/events.md. A field without a default is
always written. One with a default is left out of the line where it has that value, and read as that
value where it is absent; only fields made by `since` are written all the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.codec import Json, from_json, to_json
from phalanx.run.event_kinds.evaluations import (
    BenchmarkTask,
    Evaluate,
    Evaluated,
    MediaWritten,
    ModelSample,
    Samples,
)
from phalanx.run.event_kinds.fields import field_names, omitted
from phalanx.run.event_kinds.measurements import (
    DeviceMeasured,
    Measuring,
    SizeMeasured,
)
from phalanx.run.event_kinds.ranks import (
    Checkpoint,
    Compared,
    Dropped,
    Exported,
    FindingMade,
    MemoryShortage,
    Outcome,
    Preparing,
    RankStarted,
    Skipped,
    Step,
)
from phalanx.run.event_kinds.supervision import (
    AttemptStarted,
    Change,
    Death,
    Hang,
    NodesJoined,
    Pace,
    RankPace,
    RevisionMade,
    StopAsked,
    Usage,
)

__all__ = [
    "KINDS",
    "AttemptStarted",
    "BenchmarkTask",
    "Body",
    "Change",
    "Checkpoint",
    "Compared",
    "Death",
    "DeviceMeasured",
    "Dropped",
    "Evaluate",
    "Evaluated",
    "Exported",
    "FindingMade",
    "Hang",
    "Known",
    "Measuring",
    "MediaWritten",
    "MemoryShortage",
    "ModelSample",
    "NodesJoined",
    "Outcome",
    "Pace",
    "Preparing",
    "RankPace",
    "RankStarted",
    "RevisionMade",
    "Samples",
    "SizeMeasured",
    "Skipped",
    "Step",
    "StopAsked",
    "Unknown",
    "Usage",
    "kind_of",
    "to_body",
    "to_fields",
]


@dataclass(frozen=True)
class Unknown:
    """A kind that only a newer version knows: kept as it is, and ignored by readers."""

    kind: str
    fields: dict[str, Json]


Known = (
    AttemptStarted
    | NodesJoined
    | RankStarted
    | Preparing
    | Step
    | Skipped
    | Usage
    | Pace
    | Evaluate
    | Evaluated
    | Checkpoint
    | Samples
    | MediaWritten
    | Exported
    | Measuring
    | DeviceMeasured
    | SizeMeasured
    | FindingMade
    | Dropped
    | Compared
    | Hang
    | StopAsked
    | RevisionMade
    | Death
    | Outcome
)
Body = Known | Unknown

KINDS: dict[str, type[Known]] = {
    "attempt": AttemptStarted,
    "nodes": NodesJoined,
    "start": RankStarted,
    "preparing": Preparing,
    "step": Step,
    "skipped": Skipped,
    "usage": Usage,
    "pace": Pace,
    "evaluate": Evaluate,
    "evaluated": Evaluated,
    "checkpoint": Checkpoint,
    "samples": Samples,
    "media": MediaWritten,
    "exported": Exported,
    "measuring": Measuring,
    "device": DeviceMeasured,
    "measured": SizeMeasured,
    "finding": FindingMade,
    "dropped": Dropped,
    "compared": Compared,
    "hang": Hang,
    "stop": StopAsked,
    "revision": RevisionMade,
    "death": Death,
    "outcome": Outcome,
}
"""Each kind by its name in a line; docs/reference/events.md is made from this."""
_NAMES = {kind: name for name, kind in KINDS.items()}


def kind_of(body: Body) -> str:
    """Return the name of a kind as lines have it."""
    return body.kind if isinstance(body, Unknown) else _NAMES[type(body)]


def to_fields(body: Body) -> dict[str, Json]:
    """Return the fields of an event as its line has them."""
    if isinstance(body, Unknown):
        return body.fields
    record: dict[str, Json] = to_json(body)
    for name, default in omitted(type(body)):
        if getattr(body, name) == default:
            del record[name]
    return record


def to_body(kind: str, record: dict[str, Json]) -> tuple[Body, dict[str, Json]]:
    """Return the event that fields of a line make, and the fields that only a newer version knows.
    Raises ValueError where the fields are not those of the kind."""
    known = KINDS.get(kind)
    if known is None:
        return Unknown(kind, record), {}
    extra = record.keys() - field_names(known)
    return from_json(known, record), {name: record[name] for name in extra}
