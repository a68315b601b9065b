"""Presets: job files of their own in `presets/` beside a job file, taken by name instead of it.

`preset=NAME` is an override like any other on the way in, but it is no key of a job: it says which
file is read, the other overrides apply on top, and a run keeps the values, not the name.

A preset whose file says `from_batch: 256`, which is no key of a job either, is taken by itself when
a global batch of that size is asked for; `preset=none` keeps the job file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from phalanx.errors import Finding, UserError, did_you_mean
from phalanx.job.keys import known_key
from phalanx.job.source.origin import parse_scalar

if TYPE_CHECKING:
    from phalanx.job.load import Override

KEY = "preset"
NONE = "none"
FROM_BATCH = "from_batch"


def list_presets(folder: Path) -> dict[str, Path]:
    """The presets of a recipe's folder by name."""
    return {path.stem: path for path in sorted((folder / "presets").glob("*.yaml"))}


def describe_preset(path: Path) -> str:
    """The first comment of a preset's file."""
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return first.lstrip("# ").rstrip() if first.startswith("#") else ""


class Taken(NamedTuple):
    """What is read instead of a job file, the overrides that are left, and what is to be said."""

    source: Path | str | Mapping[str, Any]
    overrides: Sequence[Override | str]
    findings: tuple[Finding, ...] = ()


def take_preset(
    source: Path | str | Mapping[str, Any], overrides: Sequence[Override | str]
) -> Taken:
    """The file that a preset among the overrides stands for, or that the batch among them asks
    for, and the other overrides."""
    asked = [given for given in overrides if _key(given) == KEY]
    if not asked:
        return _for_the_batch(source, overrides)
    overrides = [given for given in overrides if _key(given) != KEY]
    last = asked[-1]
    name = _value(last)
    origin = last if isinstance(last, str) else last.origin
    if name == NONE:
        return Taken(source, overrides)
    if isinstance(source, Mapping):
        raise UserError(
            Finding(
                slug="preset-without-file",
                what=f"the preset `{name}` has no job file to stand in for",
                why=f"{origin}; presets lie in `presets/` beside a job file, and this job is given "
                "without one",
                fix="phalanx recipes",
            )
        )
    folder = Path(source).parent
    known = list_presets(folder)
    if name not in known:
        raise UserError(
            Finding(
                slug="unknown-preset",
                what=f"there is no preset `{name}`{did_you_mean(name, known)}",
                why=f"{origin}; `{folder / 'presets'}` holds {', '.join(known) or 'none'}",
                fix=" or ".join(f"preset={near}" for near in known) or f"remove `preset={name}`",
            )
        )
    return Taken(known[name], overrides)


def _for_the_batch(
    source: Path | str | Mapping[str, Any], overrides: Sequence[Override | str]
) -> Taken:
    asked = [given for given in overrides if known_key(_key(given)) == "global_batch_size"]
    batch = parse_scalar(_value(asked[-1])) if asked else None
    if isinstance(source, Mapping) or not isinstance(batch, int):
        return Taken(source, overrides)
    presets = list_presets(Path(source).parent)
    least = {name: _from_batch(path) for name, path in presets.items()}
    fitting = [(size, name) for name, size in least.items() if size is not None and size <= batch]
    if not fitting:
        return Taken(source, overrides)
    size, name = max(fitting)
    note = Finding(
        slug="preset-taken",
        what=f"the preset `{name}` is taken: {describe_preset(presets[name])}",
        why=f"a global batch of {batch} is asked for, it is for {size} or more",
        fix=f"preset={NONE} for the job file without it",
        severity="note",
    )
    return Taken(presets[name], overrides, (note,))


def _from_batch(preset: Path) -> int | None:
    try:
        stated = yaml.safe_load(preset.read_text(encoding="utf-8"))
    except yaml.YAMLError:  # said when it is asked for by name
        return None
    size = stated.get(FROM_BATCH) if isinstance(stated, dict) else None
    return size if isinstance(size, int) else None


def _value(given: Override | str) -> str:
    return given.partition("=")[2].strip() if isinstance(given, str) else str(given.value)


def _key(given: Override | str) -> str:
    return (given.partition("=")[0] if isinstance(given, str) else given.key).strip()
