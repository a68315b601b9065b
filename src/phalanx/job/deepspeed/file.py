"""Read DeepSpeed's JSON file; every value in it knows its line."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from phalanx.errors import Finding, UserError
from phalanx.job.source.origin import Origin, show
from phalanx.job.source.yaml_nodes import MAX_FILE_BYTES, compose


@dataclass(frozen=True)
class DeepspeedFile:
    """What DeepSpeed's file says, or the mapping that stands for it in a job."""

    content: Mapping[str, Any]
    place: str
    """The file, or the line of the job that holds the mapping."""
    lines: Mapping[str, int] = field(default_factory=dict)

    def value(self, key: str) -> Any:
        """The value at a dotted key; None when it is not there."""
        place: Any = self.content
        for part in key.split("."):
            place = place.get(part) if isinstance(place, Mapping) else None
        return place

    def origin(self, key: str) -> Origin:
        return Origin("deepspeed", self.place, self.lines.get(key, 0), key)

    def said(self, *keys: str) -> str:
        """`optimizer.params.lr = 3e-05 (ds_config.json:14)`: the why of a Finding."""
        return ", ".join(f"{k} = {show(self.value(k))} ({self.origin(k)})" for k in keys)


def read_deepspeed(source: Any, origin: Origin, job_file: Path | None) -> DeepspeedFile:
    """The file a job names, or the mapping it holds; raises one Finding when it cannot be read."""
    if isinstance(source, Mapping):
        return DeepspeedFile(source, str(origin))
    path = Path(source)
    text = _read_text(path, origin, job_file)
    try:
        content = json.loads(text, object_pairs_hook=_without_duplicates, parse_constant=_no_number)
    except (json.JSONDecodeError, RecursionError, ValueError) as error:
        line = getattr(error, "lineno", 0)
        at = f"{path}:{line}:{getattr(error, 'colno', 0)}" if line else f"`{path}`"
        lines = text.split("\n")
        shown = f"; line {line} reads {show(lines[line - 1])}" if line else ""
        problem = getattr(error, "msg", None) or str(error) or type(error).__name__
        raise UserError(
            Finding(
                slug="deepspeed-json",
                what=f"{at} is not JSON: {problem}",
                why=f"deepspeed.config = {show(source)} ({origin}){shown}",
                fix=f"python3 -m json.tool {shlex.quote(str(path))}",
            )
        ) from None
    if not isinstance(content, dict):
        raise UserError(
            Finding(
                slug="deepspeed-json",
                what=f"`{path}` is not a section in braces, it begins {show(text.strip()[:20])}",
                why=f"deepspeed.config = {show(source)} ({origin})",
                fix='{"zero_optimization": {"stage": 2}}',
            )
        )
    return DeepspeedFile(content, str(path), dict(_lines(text)))


def _read_text(path: Path, origin: Origin, job_file: Path | None) -> str:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ValueError(f"{path.stat().st_size:,} bytes, at most {MAX_FILE_BYTES:,} are read")
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, ValueError) as error:  # ValueError: no UTF-8, or a NUL in the name
        near = _near(path, job_file)
        raise UserError(
            Finding(
                slug="deepspeed-file",
                what=f"DeepSpeed's file {show(str(path))} cannot be read"
                + (f" (did you mean `{near}`?)" if near else ""),
                why=f"{getattr(error, 'strerror', None) or error}; "
                f"deepspeed.config = {show(str(path))} ({origin}); looked for in {Path.cwd()}",
                fix=origin.line_for("deepspeed.config", near or "ds_config.json"),
            )
        ) from None
    return text


def _near(path: Path, job_file: Path | None) -> str | None:
    """A file of that name beside the job, or one with a name like it."""
    if job_file is not None and not path.is_absolute() and (job_file.parent / path).is_file():
        return str(job_file.parent / path)
    try:
        names = [p.name for p in path.parent.iterdir() if p.suffix == ".json"]
    except (OSError, ValueError):
        return None
    found = get_close_matches(path.name, names, n=1, cutoff=0.5)
    return str(path.with_name(found[0])) if found else None


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    for index, (name, _) in enumerate(pairs):
        if name in dict(pairs[:index]):
            raise ValueError(f'"{name}" is given twice in one section')
    return dict(pairs)


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no number JSON has")


def _lines(text: str) -> Iterator[tuple[str, int]]:
    """The line of every key. JSON is YAML but for tabs, and JSON's strings hold no bare tab."""

    def walk(node: yaml.Node, prefix: str) -> Iterator[tuple[str, int]]:
        if isinstance(node, yaml.MappingNode):
            for name, inner in node.value:
                key = f"{prefix}{name.value}"
                yield key, name.start_mark.line + 1
                yield from walk(inner, f"{key}.")

    try:
        yield from walk(compose(text.expandtabs(), "", top=None), "")
    except UserError:  # deeper than a job may be, or a key of a thousand letters
        return
