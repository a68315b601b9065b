"""A job while it is put together: sections are taken apart so that every key has an origin, and all
that is wrong with single keys is found at once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import yaml
from pydantic import ValidationError

from phalanx.errors import Finding, UserError
from phalanx.job.keys import (
    EXAMPLES,
    field_of,
    fields,
    help_of,
    sections,
    unknown_key,
    wrong_value,
)
from phalanx.job.schema import Job
from phalanx.job.source.origin import DEFAULT, Origin, format_value, parse_scalar, show
from phalanx.job.source.yaml_nodes import MAX_DEPTH, too_deep

MAX_FINDINGS = 50  # a wrong file given by mistake can hold a hundred thousand unknown keys


class Draft:
    """A job being put together: its values, where each came from, and what is wrong so far."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.origins: dict[str, Origin] = {}
        self.findings: list[Finding] = []
        self.rejected: set[str] = set()

    def add(self, path: tuple[str, ...], value: Any, origin: Origin) -> None:
        """Take a value in, section by section, so that every key gets an origin of its own."""
        key = ".".join(path)
        if key in self.origins:
            self._duplicate(key, self.origins[key], origin)
            return
        if path:
            self.origins[key] = origin
        if len(path) > MAX_DEPTH:
            raise UserError(too_deep(str(origin)))
        pairs = self._pairs(value, key, origin)
        if pairs is None or (path and key not in sections() and path[0] != "options"):
            self._put(path, self.plain(value, key, origin))
            return
        self._put(path, {})
        for name, inner, where in pairs:
            dotted = tuple(name.split("."))
            is_known = name in fields() or (dotted[0] == "options" and all(dotted))
            self.add(dotted if not path and is_known else (*path, name), inner, where)

    def value(self, key: str) -> Any:
        """The value of a dotted key so far; None when nobody gave one."""
        return self._value(tuple(key.split(".")))

    def forget(self, path: tuple[str, ...]) -> None:
        """Drop what an override replaces."""
        key = ".".join(path)
        self.origins = {
            known: origin
            for known, origin in self.origins.items()
            if known != key and not known.startswith(f"{key}.")
        }
        place = self._place(path)
        if place is not None:
            place.pop(path[-1], None)

    def plain(self, value: Any, key: str, origin: Origin) -> Any:
        """Turn nodes, mappings and paths into plain data; refuse numbers JSON cannot hold."""
        if key.count(".") > MAX_DEPTH:
            raise UserError(too_deep(str(origin)))
        pairs = self._pairs(value, key, origin)
        if pairs is not None:
            result: dict[str, Any] = {}
            lines: dict[str, Origin] = {}
            for name, inner, where in pairs:
                if name in lines:
                    self._duplicate(f"{key}.{name}", lines[name], where)
                lines.setdefault(name, where)
                result.setdefault(name, self.plain(inner, f"{key}.{name}", where))
            return result
        items = value.value if isinstance(value, yaml.SequenceNode) else value
        if isinstance(items, (list, tuple)):
            return [self.plain(inner, f"{key}.{i}", origin) for i, inner in enumerate(items)]
        if isinstance(value, yaml.ScalarNode):
            value = value.value if value.style else parse_scalar(value.value)
        if (isinstance(value, float) and not math.isfinite(value)) or (
            isinstance(value, int) and not -(2**63) <= value < 2**63
        ):
            self.rejected.add(field_of(key.split(".")))
            if len(self.findings) < MAX_FINDINGS:
                self.findings.append(wrong_value(key, value, origin))
            return None
        return str(value) if isinstance(value, PurePath) else value

    def validate(self, where: str) -> Job:
        """Check every key against the schema; raise all problems together."""
        # A section with every line commented out is null, and means its defaults.
        given = {k: v for k, v in self.values.items() if v is not None or k not in sections()}
        try:
            job = Job.model_validate(given)
        except ValidationError as error:
            seen = set(self.rejected)
            problems = error.errors(include_url=False, include_context=False)
            for problem in problems[: MAX_FINDINGS + 1]:
                finding = self._translate(problem["loc"], problem["type"], where, seen)
                self.findings += [finding] if finding else []
        if len(self.findings) > MAX_FINDINGS:
            rest = Finding(
                slug="more-problems",
                what=f"more than {MAX_FINDINGS} problems, the others are not shown",
                why=f"{where} has {len(self.origins)} keys",
                fix="mend these first, or give another file if this is not the job",
                severity="note",
            )
            raise UserError([*self.findings[:MAX_FINDINGS], rest])
        if self.findings:
            raise UserError(self.findings)
        return job

    def _translate(
        self, loc: tuple[int | str, ...], kind: str, where: str, seen: set[str]
    ) -> Finding | None:
        names = [str(part) for part in loc]
        key, section = ".".join(names), ".".join(names[:-1])
        if kind == "extra_forbidden" and (not section or section in sections()):
            return unknown_key(key, self._value(loc), self.origins.get(key, DEFAULT))
        # A union reports one problem per branch below the key: one Finding per key is enough.
        key = field_of(names)
        if key in seen:
            return None
        seen.add(key)
        if kind == "missing":
            return Finding(
                slug="missing-key",
                what=f"the job has no `{key}`",
                why=f"{where} does not set it and it has no default; {key}: {help_of(key)}",
                fix=f"{key}: {format_value(EXAMPLES.get(key))}",
            )
        return wrong_value(key, self._value(tuple(key.split("."))), self.origins.get(key, DEFAULT))

    def _value(self, loc: tuple[int | str, ...]) -> Any:
        place: Any = self.values
        for part in loc:
            place = place.get(part) if isinstance(place, dict) else None
        return place

    def _place(self, path: tuple[str, ...]) -> dict[str, Any] | None:
        place = self.values
        for part in path[:-1]:
            inner = place.get(part)
            if inner is None:
                inner = place[part] = {}
            if not isinstance(inner, dict):
                return None  # the section itself is wrong, and is reported as such
            place = inner
        return place

    def _put(self, path: tuple[str, ...], value: Any) -> None:
        place = self._place(path) if path else None
        if place is not None and not (value == {} and isinstance(place.get(path[-1]), dict)):
            place[path[-1]] = value

    def _pairs(self, value: Any, key: str, origin: Origin) -> list[tuple[str, Any, Origin]] | None:
        """The entries of a mapping with their origins, or None for anything else."""
        entries: list[tuple[Any, Any, Origin]]
        if isinstance(value, yaml.MappingNode):
            entries = []
            for name, inner in value.value:
                line = name.start_mark.line + 1 if origin.kind == "file" else origin.line
                here = Origin(origin.kind, origin.name, line)
                entries.append((self._name(name), inner, here))
        elif isinstance(value, Mapping):
            entries = [(name, inner, origin) for name, inner in value.items()]
        else:
            return None
        for name, _, here in entries:
            if not isinstance(name, str):
                self.findings.append(
                    Finding(
                        slug="key-not-text",
                        what=f"the key {show(name)}{f' in `{key}`' if key else ''} is not text",
                        why=f"{here}; every key of a job is a name",
                        fix=f'put it in quotes: "{show(name)}": ...',
                    )
                )
        return [(name, inner, here) for name, inner, here in entries if isinstance(name, str)]

    def _name(self, node: yaml.Node) -> Any:
        if not isinstance(node, yaml.ScalarNode):
            return () if isinstance(node, yaml.SequenceNode) else None
        return node.value if node.style else parse_scalar(node.value)

    def _duplicate(self, key: str, first: Origin, second: Origin) -> None:
        self.findings.append(
            Finding(
                slug="duplicate-key",
                what=f"`{key}` is given twice, at {first} and at {second}",
                why="only one of the two could be used, and the other would be dropped silently",
                fix=f"remove `{key}` at {first} or at {second}",
            )
        )
