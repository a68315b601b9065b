"""Presets: job files of their own in `presets/` beside a job file, taken by name instead of it.

`preset=NAME` is an override like any other on the way in, but it is no key of a job: it says which
file is read, the other overrides apply on top, and a run keeps the values, not the name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phalanx.errors import Finding, UserError, did_you_mean

if TYPE_CHECKING:
    from phalanx.job.load import Override

KEY = "preset"


def list_presets(folder: Path) -> dict[str, Path]:
    """The presets of a recipe's folder by name."""
    return {path.stem: path for path in sorted((folder / "presets").glob("*.yaml"))}


def describe_preset(path: Path) -> str:
    """The first comment of a preset's file."""
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return first.lstrip("# ").rstrip() if first.startswith("#") else ""


def take_preset(
    source: Path | str | Mapping[str, Any], overrides: Sequence[Override | str]
) -> tuple[Path | str | Mapping[str, Any], Sequence[Override | str]]:
    """The file that a preset among the overrides stands for, and the other overrides."""
    asked = [given for given in overrides if _key(given) == KEY]
    if not asked:
        return source, overrides
    overrides = [given for given in overrides if _key(given) != KEY]
    last = asked[-1]
    name = last.partition("=")[2].strip() if isinstance(last, str) else str(last.value)
    origin = last if isinstance(last, str) else last.origin
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
    return known[name], overrides


def _key(given: Override | str) -> str:
    return (given.partition("=")[0] if isinstance(given, str) else given.key).strip()
