"""Read a job: YAML, overrides and Python values become one `Job`; each value keeps its origin.

Problems of single keys are all reported here at once; rules between keys are in `job.rules`.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.errors import Finding, UserError
from phalanx.job.deepspeed import absorb_deepspeed
from phalanx.job.draft import Draft
from phalanx.job.keys import fields, known_key, text_keys, unknown_key
from phalanx.job.presets import FROM_BATCH, take_preset
from phalanx.job.schema import Job
from phalanx.job.source.origin import DEFAULT, Origin, format_value, parse_scalar, show
from phalanx.job.source.value_types import Interval
from phalanx.job.source.yaml_nodes import compose, read_text


@dataclass(frozen=True)
class Override:
    """One value from outside the job file; it wins over the file, and a later one over an earlier.

    A text value of a job key that is not text itself is read as YAML: `"3"` sets `epochs` to 3.
    """

    key: str
    value: Any
    source: str
    """`--epochs` for an option, `epochs=3` for an override, `python` for a keyword argument."""

    @property
    def origin(self) -> Origin:
        if self.source == "python":
            return Origin("python")
        return Origin("option" if self.source.startswith("-") else "override", self.source)


@dataclass(frozen=True)
class LoadedJob:
    """A job and where each of its values came from."""

    job: Job
    origins: Mapping[str, Origin]
    path: Path | None
    findings: tuple[Finding, ...] = ()
    """Warnings and notes of the reading; errors were raised."""

    def origin(self, key: str) -> Origin:
        """Where the value of a dotted key came from; `default` when nobody set it."""
        return self.origins.get(key, DEFAULT)

    def value(self, key: str) -> Any:
        """The value of a dotted key of the schema."""
        place: Any = self.job
        for part in key.split("."):
            place = getattr(place, part)
        return place

    def plain(self, key: str) -> Any:
        """The value of a dotted key, of `options` too, as a job file has it."""
        if key.startswith("options."):
            place: Any = self.job.options
            for part in key.split(".")[1:]:
                place = place[part]
            return place
        value = self.value(key)
        return str(value) if isinstance(value, Interval) else value

    def said(self, *keys: str) -> str:
        """`epochs = 10 (job.yaml:2), steps = 50 (--steps)`: the why of a Finding."""
        return ", ".join(f"{k} = {format_value(self.value(k))} ({self.origin(k)})" for k in keys)

    def line_for(self, key: str, value: Any) -> str:
        """The line to paste where `key` came from so that it becomes `value`."""
        return self.origin(key).line_for(key, value)

    def keep_one(self, first: str, second: str) -> str:
        """How to drop one of two keys: the file's, when the other was typed for this run."""
        for kept, dropped in ((first, second), (second, first)):
            if self.origin(kept).is_command_line and not self.origin(dropped).is_command_line:
                return f"add {dropped}=null to the command line"
        return f"keep only `{self.line_for(first, self.value(first))}` or only " + (
            f"`{self.line_for(second, self.value(second))}`"
        )

    def ignored(self, key: str, because: str, decider: str, value: Any) -> Finding:
        """The warning for a key without effect, which `decider` would have as `value`."""
        return Finding(
            slug="ignored-key",
            what=f"`{key}` = {format_value(self.value(key))} is ignored: {because}",
            why=self.said(key, decider),
            fix=f"remove `{key}`, or {self.line_for(decider, value)}",
            severity="warning",
        )


def load_job(
    source: Path | str | Mapping[str, Any], overrides: Sequence[Override | str] = ()
) -> LoadedJob:
    """Read a job from a file path or a mapping; raise one UserError with every problem found.
    `preset=NAME` reads a file of that name in `presets/` beside the job file instead of it,
    as does a batch that one is for."""
    draft = Draft()
    source, overrides, notes = take_preset(source, overrides)
    path = None if isinstance(source, Mapping) else Path(source)
    if isinstance(source, Mapping):
        draft.add((), source, Origin("python"))
    elif path is not None:
        draft.add((), compose(read_text(path), str(path)), Origin("file", str(path), 1))
        if path.parent.name == "presets":
            draft.forget((FROM_BATCH,))
    for given in overrides:
        try:
            override = parse_override(given) if isinstance(given, str) else given
            target = _resolve(override)
            draft.forget(target)
            draft.add(target, _typed(".".join(target), override.value), override.origin)
        except UserError as error:
            draft.findings += error.findings
    notes += tuple(absorb_deepspeed(draft, path))
    job = draft.validate(str(path) if path else "the job")
    return LoadedJob(job, draft.origins, path, notes)


def parse_override(text: str) -> Override:
    """Read `key=value`; the value follows YAML's rules for a plain or a bracketed value."""
    key, equals, raw = text.partition("=")
    if not equals or not key.strip():
        raise UserError(
            Finding(
                slug="override-syntax",
                what=f"{show(text)} is no override: it has no {'key' if equals else '`=`'}",
                why="arguments after the job file are read as key=value",
                fix=f"{shlex.quote(key) if not equals and key else 'epochs'}=3",
            )
        )
    value: Any = parse_scalar(raw.strip())
    if raw.lstrip()[:1] in ("[", "{", '"', "'"):
        draft = Draft()
        value = draft.plain(compose(raw, text, top=None), key, Origin("override", text))
        if draft.findings:
            raise UserError(draft.findings)
    elif known_key(key.strip()) in text_keys() and value is not None:
        value = raw.strip()
    return Override(key.strip(), value, text)


def _resolve(override: Override) -> tuple[str, ...]:
    key = override.key.strip()
    parts = tuple(key.split("."))
    known = known_key(key)
    if known:
        return tuple(known.split("."))
    if not all(parts) or (parts[0] in fields() and parts[0] != "options"):
        raise UserError(unknown_key(key, override.value, override.origin))
    return parts if parts[0] == "options" else ("options", *parts)


def _typed(key: str, value: Any) -> Any:
    is_text = key in text_keys() or key.startswith("options.")
    return (
        parse_override(f"{key}={value}").value if isinstance(value, str) and not is_text else value
    )
