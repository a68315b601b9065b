"""A job file from imported values, its keys in the order of the schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phalanx.job.editor import with_editor_line
from phalanx.job.importing.translation import Line
from phalanx.job.keys import fields
from phalanx.job.load import LoadedJob
from phalanx.job.source.origin import format_value, show

_EXCLUSIVE = (
    ("epochs", "steps"),
    ("global_batch_size", "batch_per_gpu"),
    ("devices.gpus", "devices.cpu"),
    ("ema.warmup", "ema.ramp"),
)
# What goes with a value; the recipe's own for it say nothing of another one.
_BELONGS = {
    "optimizer.lr": ("optimizer.lr_batch", "optimizer.lr_rule"),
    "optimizer.name": tuple(
        f"optimizer.{name}" for name in ("betas", "eps", "momentum", "nesterov")
    ),
    "ema.decay": tuple(f"ema.{name}" for name in ("warmup", "ramp", "buffers", "evaluate")),
    **dict.fromkeys(
        ("global_batch_size", "batch_per_gpu"), ("micro_batch_size", "gradient_accumulation")
    ),
}


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
    dropped = {key for keys in _EXCLUSIVE if any(key in values for key in keys) for key in keys}
    for key, names in _BELONGS.items():
        is_kept = key == "optimizer.name" and values.get(key) == base.value(key)
        if key in values and not is_kept and (key != "ema.decay" or values[key] is None):
            dropped |= set(names)
    sections = {key.partition(".")[0] for key in fields() if "." in key} | {"options"}
    own = {
        key: base.plain(key)
        for key, origin in base.origins.items()
        if origin.kind == "file" and key not in sections and key not in dropped
    }
    return {**own, **values}


def unstated(
    values: Mapping[str, Any], stated: Mapping[str, Any], base: LoadedJob | None
) -> list[Line]:
    """What the job says that the settings did not, with where it is from."""
    lines = []
    if base is not None:
        own = f"not stated; the recipe `{base.job.recipe}` has it"
        lines = [
            Line("", "unstated", f"{key} = {show(value)}", own)
            for key, value in values.items()
            if key not in stated and key != "recipe" and not key.startswith("options.")
        ]
    for keys in (("optimizer.lr",), ("global_batch_size", "batch_per_gpu"), ("epochs", "steps")):
        if not any(values.get(key) is not None for key in keys):
            rate = f"optimizer.lr = {fields()['optimizer.lr'].default}"
            why = "not stated; state it in the job before you train"
            lines.append(Line("", "unstated", rate if len(keys) == 1 else " or ".join(keys), why))
    return lines
