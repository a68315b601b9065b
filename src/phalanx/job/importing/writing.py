"""A job file from imported values, its keys in the order of the schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phalanx.job.editor import with_editor_line
from phalanx.job.keys import fields
from phalanx.job.load import LoadedJob
from phalanx.job.origin import format_value
from phalanx.job.values import Interval

_EXCLUSIVE = (
    ("epochs", "steps"),
    ("global_batch_size", "batch_per_gpu"),
    ("ema.warmup", "ema.ramp"),
)


def job_text(values: Mapping[str, Any], place: str) -> str:
    """The YAML of a job of dotted keys."""
    order = {key: index for index, key in enumerate(fields())}

    def rank(key: str) -> tuple[int, str]:
        return order.get(key, order.get(key.partition(".")[0], len(order))), key

    lines = [f"# From {' '.join(place.split())}. Every key: `phalanx explain`."]
    section = ""
    for key in sorted(values, key=rank):
        head, dot, name = key.partition(".")
        if dot and head != section:
            lines.append(f"{head}:")
        section = head if dot else ""
        indent = "  " if dot else ""
        lines.append(f"{indent}{name or head}: {format_value(values[key])}")
    return with_editor_line("\n".join(lines) + "\n")


def complete(values: Mapping[str, Any], base: LoadedJob | None) -> dict[str, Any]:
    """The values over what the recipe's own job file says, without what contradicts them."""
    if base is None:
        return dict(values)
    dropped = {key for pair in _EXCLUSIVE if any(key in values for key in pair) for key in pair}
    if "optimizer.lr" in values:
        dropped |= {"optimizer.lr_batch", "optimizer.lr_rule"}
    sections = {key.partition(".")[0] for key in fields() if "." in key} | {"options"}
    own = {
        key: _value(base, key)
        for key, origin in base.origins.items()
        if origin.kind == "file" and key not in sections and key not in dropped
    }
    return {**own, **values}


def _value(job: LoadedJob, key: str) -> Any:
    if key.startswith("options."):
        place: Any = job.job.options
        for part in key.split(".")[1:]:
            place = place[part]
        return place
    value = job.value(key)
    return str(value) if isinstance(value, Interval) else value
