"""Read a job: YAML, overrides and Python values become one `Job`; each value keeps its origin.

Problems of single keys are all reported here at once; rules between keys are in `job.rules`.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path, PurePath
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from phalanx.errors import Finding, UserError
from phalanx.job.schema import Interval, Job

MAX_FILE_BYTES = 1 << 20  # a job file is a page; a megabyte is somebody's data or weights
MAX_DEPTH = 32

ALIASES = {
    "lr": "optimizer.lr",
    "learning_rate": "optimizer.lr",
    "weight_decay": "optimizer.weight_decay",
    "warmup": "schedule.warmup",
    "batch": "global_batch_size",
    "batch_size": "global_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation",
    "gpus": "devices.gpus",
    "cpu": "devices.cpu",
    "workers": "loader.workers",
    "num_workers": "loader.workers",
}
"""Short names an override may use; every other bare name is an option of the recipe."""

_EXAMPLES: dict[str, Any] = {
    "recipe": "digits",
    "name": "my-run",
    "epochs": 10,
    "steps": 1000,
    "stop_after": "60 minutes",
    "global_batch_size": 64,
    "batch_per_gpu": 32,
    "gradient_accumulation": 2,
    "micro_batch_size": 8,
    "devices.gpus": "all",
    "devices.cpu": 2,
    "optimizer.lr_batch": 256,
    "optimizer.clip_norm": 1.0,
    "evaluate.batch_size": 64,
    "evaluate.mode": "max",
    "evaluate.early_stopping": 5,
}

_INT = re.compile(r"[-+]?\d+|0x[0-9a-fA-F]+|0o[0-7]+")
_FLOAT = re.compile(r"[-+]?(\.\d+|\d+(\.\d*)?)([eE][-+]?\d+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_PLAIN_TEXT = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./%+-]*( [A-Za-z0-9_./%+-]+)*(:\w+)?")


@dataclass(frozen=True)
class Origin:
    """Where one value came from; `str` is what a Finding prints."""

    kind: Literal["file", "option", "override", "python", "default"]
    name: str = ""
    line: int = 0

    @property
    def is_command_line(self) -> bool:
        return self.kind in ("option", "override")

    def __str__(self) -> str:
        if self.kind == "file":
            return f"{self.name}:{self.line}"
        if self.kind == "override":
            return f"{self.name} on the command line"
        return self.name or self.kind

    def line_for(self, key: str, value: Any) -> str:
        """The line to paste at this origin so that `key` becomes `value`."""
        if self.kind == "override":
            return shlex.quote(f"{key}={format_value(value)}")
        if self.kind == "option" and isinstance(value, list):
            return f"{self.name} {','.join(map(str, value))}{',' if len(value) == 1 else ''}"
        if self.kind == "option":
            return f"{self.name} {shlex.quote(format_value(value))}"
        return f"{key}: {format_value(value)}"


DEFAULT = Origin("default")


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

    def origin(self, key: str) -> Origin:
        """Where the value of a dotted key came from; `default` when nobody set it."""
        return self.origins.get(key, DEFAULT)


def load_job(
    source: Path | str | Mapping[str, Any], overrides: Sequence[Override | str] = ()
) -> LoadedJob:
    """Read a job from a file path or a mapping; raise one UserError with every problem found."""
    draft = _Draft()
    path = None if isinstance(source, Mapping) else Path(source)
    if isinstance(source, Mapping):
        draft.add((), source, Origin("python"))
    elif path is not None:
        draft.add((), _compose(_read_text(path), str(path)), Origin("file", str(path), 1))
    for given in overrides:
        try:
            override = parse_override(given) if isinstance(given, str) else given
            target = _resolve(override)
            draft.forget(target)
            draft.add(target, _typed(".".join(target), override.value), override.origin)
        except UserError as error:
            draft.findings += error.findings
    job = draft.validate(str(path) if path else "the job")
    return LoadedJob(job, draft.origins, path)


def parse_override(text: str) -> Override:
    """Read `key=value`; the value follows YAML's rules for a plain or a bracketed value."""
    key, equals, raw = text.partition("=")
    if not equals or not key.strip():
        raise UserError(
            Finding(
                slug="override-syntax",
                what=f"{_show(text)} is no override: it has no {'key' if equals else '`=`'}",
                why="arguments after the job file are read as key=value",
                fix=f"{shlex.quote(key) if not equals and key else 'epochs'}=3",
            )
        )
    value: Any = parse_scalar(raw.strip())
    if raw.lstrip()[:1] in ("[", "{", '"', "'"):
        draft = _Draft()
        value = draft.plain(_compose(raw, text, top=None), key, Origin("override", text))
        if draft.findings:
            raise UserError(draft.findings)
    elif _known(key.strip()) in _text_keys() and value is not None:
        value = raw.strip()
    return Override(key.strip(), value, text)


def parse_scalar(text: str) -> Any:
    """Read one plain scalar by YAML 1.2: `1e-3` is a number; `yes`, `1:30` and dates are text."""
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text.lower() in ("true", "false") and text in (text.lower(), text.title(), text.upper()):
        return text.lower() == "true"
    if _INT.fullmatch(text):
        # 400 digits are far outside what is allowed, and int() of many more raises.
        return int(text[:400], {"0x": 16, "0o": 8}.get(text[:2], 10))
    if _FLOAT.fullmatch(text):
        return float(text)
    if _NOT_FINITE.fullmatch(text):
        return float(text.replace(".", ""))
    return text


def format_value(value: Any) -> str:
    """Write a value as it would stand in a job file, on one line."""
    if isinstance(value, str) and _PLAIN_TEXT.fullmatch(value) and parse_scalar(value) == value:
        return value
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(format_value, value))}]"
    if isinstance(value, Interval):
        return str(value)
    return json.dumps(value, default=str, ensure_ascii=False)


class _Draft:
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
            raise UserError(_too_deep(str(origin)))
        pairs = self._pairs(value, key, origin)
        if pairs is None or (path and key not in _sections() and path[0] != "options"):
            self._put(path, self.plain(value, key, origin))
            return
        self._put(path, {})
        for name, inner, where in pairs:
            dotted = tuple(name.split("."))
            is_known = name in _fields() or (dotted[0] == "options" and all(dotted))
            self.add(dotted if not path and is_known else (*path, name), inner, where)

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
            raise UserError(_too_deep(str(origin)))
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
            self.rejected.add(_field_of(key.split(".")))
            self.findings.append(_wrong_value(key, value, origin))
            return None
        return str(value) if isinstance(value, PurePath) else value

    def validate(self, where: str) -> Job:
        """Check every key against the schema; raise all problems together."""
        # A section with every line commented out is null, and means its defaults.
        given = {k: v for k, v in self.values.items() if v is not None or k not in _sections()}
        try:
            job = Job.model_validate(given)
        except ValidationError as error:
            seen = set(self.rejected)
            for problem in error.errors(include_url=False, include_context=False):
                finding = self._translate(problem["loc"], problem["type"], where, seen)
                self.findings += [finding] if finding else []
        if self.findings:
            raise UserError(self.findings)
        return job

    def _translate(
        self, loc: tuple[int | str, ...], kind: str, where: str, seen: set[str]
    ) -> Finding | None:
        names = [str(part) for part in loc]
        key, section = ".".join(names), ".".join(names[:-1])
        if kind == "extra_forbidden" and (not section or section in _sections()):
            return _unknown_key(key, self._value(loc), self.origins.get(key, DEFAULT))
        # A union reports one problem per branch below the key: one Finding per key is enough.
        key = _field_of(names)
        if key in seen:
            return None
        seen.add(key)
        if kind == "missing":
            return Finding(
                slug="missing-key",
                what=f"the job has no `{key}`",
                why=f"{where} does not set it and it has no default; {key}: {_help(key)}",
                fix=f"{key}: {format_value(_EXAMPLES.get(key))}",
            )
        return _wrong_value(key, self._value(tuple(key.split("."))), self.origins.get(key, DEFAULT))

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
                        what=f"the key {_show(name)}{f' in `{key}`' if key else ''} is not text",
                        why=f"{here}; every key of a job is a name",
                        fix=f'put it in quotes: "{_show(name)}": ...',
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


class _Loader(yaml.SafeLoader):
    """Composes nodes only. Every anchor and alias is refused, not only a bomb: a value written
    once and used twice has no single line to point at, and job files are too short to need it."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) or event.anchor:
            name = f"{'*' if isinstance(event, yaml.AliasEvent) else '&'}{event.anchor}"
            raise UserError(
                Finding(
                    slug="yaml-alias",
                    what=f"the YAML anchor or alias `{name}` is not read in a job",
                    why=f"{self.name}:{line}; a few aliases can unfold to gigabytes",
                    fix=f"write the value out in place of `{name}`",
                )
            )
        if getattr(event, "tag", None) is not None:
            raise UserError(
                Finding(
                    slug="yaml-tag",
                    what=f"the YAML tag `{event.tag}` is not read in a job",
                    why=f"{self.name}:{line}; tags can run code, a job is data only",
                    fix=f"remove the tag and write the plain value on line {line}",
                )
            )
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise UserError(_too_deep(f"{self.name}:{line}"))
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _read_text(path: Path) -> str:
    """The text of a job file; looks at its size first, so that a huge file answers at once."""
    try:
        about = path.stat()
        if stat.S_ISREG(about.st_mode) and about.st_size <= MAX_FILE_BYTES:
            with path.open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)  # /proc says 0 and then gives more
    except FileNotFoundError:
        beside = _names_beside(path, (".yaml", ".yml"))
        near = get_close_matches(path.name, beside, n=1, cutoff=0.5)
        raise UserError(
            Finding(
                slug="job-missing",
                what=f"there is no job file `{path}`"
                + (f" (did you mean `{path.with_name(near[0])}`?)" if near else ""),
                why=f"`{path.parent}` holds {', '.join(beside[:8]) or 'no .yaml file'}",
                fix=str(path.with_name((near or beside or ["job.yaml"])[0])),
            )
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise UserError(
            Finding(
                slug="job-unreadable",
                what=f"the job file {_show(str(path))} cannot be read",
                why=getattr(error, "strerror", None) or str(error),
                fix=f"ls -l {shlex.quote(str(path))}",
            )
        ) from None
    if not stat.S_ISREG(about.st_mode):
        inside = _names_beside(path / "x", (".yaml", ".yml")) if path.is_dir() else []
        raise UserError(
            Finding(
                slug="job-not-a-file",
                what=f"`{path}` is a {'folder' if path.is_dir() else 'device or pipe'}, "
                "a job is a YAML file",
                why=f"it holds {', '.join(inside[:8]) or 'no .yaml file'}",
                fix=str(path / (inside or ["job.yaml"])[0]),
            )
        )
    if max(about.st_size, len(data) if about.st_size <= MAX_FILE_BYTES else 0) > MAX_FILE_BYTES:
        raise UserError(
            Finding(
                slug="job-too-large",
                what=f"`{path}` is {about.st_size:,} bytes, a job file has at most "
                f"{MAX_FILE_BYTES:,}",
                why="a file of this size is data or weights; it was not read",
                fix="name weights as `init_from: FILE` and data under `options`",
            )
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(_binary(path, f"byte {error.start} is not UTF-8 text")) from None
    if "\0" in text:
        raise UserError(_binary(path, f"byte {data.index(0)} is NUL"))
    return text


def _names_beside(path: Path, endings: tuple[str, ...]) -> list[str]:
    try:
        return sorted(p.name for p in path.parent.iterdir() if p.suffix in endings)
    except (OSError, ValueError):
        return []


def _binary(path: Path, why: str) -> Finding:
    return Finding(
        slug="job-binary",
        what=f"`{path}` is not a text file",
        why=f"{why}; a job is YAML in UTF-8",
        fix=f"file {shlex.quote(str(path))}",
    )


def _too_deep(where: str) -> Finding:
    return Finding(
        slug="too-deep",
        what=f"the job is nested more than {MAX_DEPTH} levels deep",
        why=f"reached at {where}",
        fix="put nested data into a file of its own and name that file under `options`",
    )


def _compose(text: str, name: str, *, top: str | None = "recipe: digits") -> yaml.Node:
    """The one node of a YAML text: a mapping, for which `top` is the fix, or anything if None."""
    try:
        loader = _Loader(text)
        loader.name = name
        node = loader.get_node() if loader.check_node() else None
        extra: Any = loader.peek_event() if loader.check_node() else None  # type: ignore[no-untyped-call]
    except yaml.reader.ReaderError as error:
        raise UserError(
            _syntax(text, name, text.count("\n", 0, error.position), 0, error.reason)
        ) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = f"{error.context or ''} {error.problem or ''}".strip()
        raise UserError(
            _syntax(text, name, mark.line if mark else 0, mark.column if mark else 0, problem)
        ) from None
    except (
        ValueError,
        OverflowError,
        IndexError,
    ) as error:  # PyYAML on escapes such as "\UFFFFFFFF"
        raise UserError(_syntax(text, name, loader.line, loader.column, str(error))) from None
    if extra is not None:
        second = extra.start_mark.line + 1
        raise UserError(
            Finding(
                slug="yaml-documents",
                what=f"`{name}` holds more than one YAML document",
                why=f"the second begins at {name}:{second}; a job is one document",
                fix=f"remove the `---` at line {second}, or keep one job per file",
            )
        )
    if top and (node is None or (isinstance(node, yaml.ScalarNode) and not node.value)):
        raise UserError(
            Finding(
                slug="job-empty",
                what=f"the job file `{name}` is empty",
                why=f"its {len(text)} characters hold no key",
                fix=top,
            )
        )
    if node is None or (top and not isinstance(node, yaml.MappingNode)):
        kind = "a list" if isinstance(node, yaml.SequenceNode) else "a single value"
        raise UserError(
            Finding(
                slug="job-not-a-mapping",
                what=f"the job is {kind}, not `key: value` lines",
                why=f"{name}:{node.start_mark.line + 1 if node else 1} begins {kind}",
                fix=top or "key: value",
            )
        )
    return node


def _syntax(text: str, name: str, line: int, column: int, problem: str) -> Finding:
    lines = text.splitlines() or [""]
    bad = lines[min(line, len(lines) - 1)]
    has_tab = "\t" in problem or "\\t" in problem
    return Finding(
        slug="yaml-syntax",
        what=f"{name}:{line + 1}:{column + 1} is not YAML: {problem}",
        why=f"line {line + 1} reads {_show(bad)}",
        fix=f"indent with spaces: {_show(bad.expandtabs(2))}"
        if has_tab
        else "write one `key: value` per line, and text with special characters in quotes",
    )


def _show(value: Any) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


@cache
def _fields() -> dict[str, FieldInfo]:
    def walk(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
        for name, info in model.model_fields.items():
            yield prefix + name, info
            if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
                yield from walk(info.annotation, f"{prefix}{name}.")

    return dict(walk(Job, ""))


@cache
def _sections() -> frozenset[str]:
    return frozenset(key.rpartition(".")[0] for key in _fields() if "." in key)


@cache
def _text_keys() -> frozenset[str]:
    return frozenset(
        k for k, f in _fields().items() if f.annotation is str or str in get_args(f.annotation)
    )


def _help(key: str) -> str:
    info = _fields().get(key)
    return " ".join(((info and info.description) or "an option of the recipe").split()).rstrip(".")


def _field_of(names: Sequence[str]) -> str:
    """The job key that holds a place, such as `devices.gpus` for its second item."""
    known = [".".join(names[:n]) for n in range(len(names), 0, -1)]
    return next((key for key in known if key in _fields() and key != "options"), known[0])


def _known(key: str) -> str | None:
    """The job key a person means by a full key or by one of the short names."""
    for name in (key, key.replace("-", "_")):
        if ALIASES.get(name, name) in _fields():
            return ALIASES.get(name, name)
    return None


def _resolve(override: Override) -> tuple[str, ...]:
    key = override.key.strip()
    parts = tuple(key.split("."))
    known = _known(key)
    if known:
        return tuple(known.split("."))
    if not all(parts) or (parts[0] in _fields() and parts[0] != "options"):
        raise UserError(_unknown_key(key, override.value, override.origin))
    return parts if parts[0] == "options" else ("options", *parts)


def _typed(key: str, value: Any) -> Any:
    is_text = key in _text_keys() or key.startswith("options.")
    return (
        parse_override(f"{key}={value}").value if isinstance(value, str) and not is_text else value
    )


def _nearest(key: str) -> str | None:
    section, _, last = key.lower().replace("-", "_").rpartition(".")
    ends = [known.rpartition(".")[2] for known in _fields()]
    siblings = {k.rpartition(".")[2]: k for k in _fields() if k.rpartition(".")[0] == section}
    unique = {k.rpartition(".")[2]: k for k in _fields() if ends.count(k.rpartition(".")[2]) == 1}
    for names, cutoff in ((siblings, 0.6), (ALIASES, 0.8), (unique, 0.8)):
        near = get_close_matches(last, list(names), n=1, cutoff=cutoff)
        if near:
            return names[near[0]]
    return None


def _unknown_key(key: str, value: Any, origin: Origin) -> Finding:
    near = _nearest(key)
    section = key.rpartition(".")[0]
    choices = [
        k for k in _fields() if k.rpartition(".")[0] == (section if section in _sections() else "")
    ]
    fix = f"the keys here are {', '.join(choices)}"
    if near and not isinstance(value, dict):
        fix = origin.line_for(near, value)
    elif near:
        fix = f"{near}:"
    elif not section:
        fix = f"{origin.line_for(f'options.{key}', value)} if the recipe has this option; {fix}"
    return Finding(
        slug="unknown-key",
        what=f"`{key}` is not a key of a job" + (f" (did you mean `{near}`?)" if near else ""),
        why=f"{key} = {_show(value)} ({origin})",
        fix=fix,
    )


def _wrong_value(key: str, value: Any, origin: Origin) -> Finding:
    known = _field_of(key.split("."))
    info = _fields().get(known)
    allowed = _allowed(info.annotation, info.metadata) if info else ["a finite number in 64 bits"]
    choices = " or ".join(filter(None, [", ".join(allowed[:-1]), allowed[-1]]))
    better_key, better = _better(known, value)
    return Finding(
        slug="wrong-value",
        what=f"`{key}` is {_show(value)}, it must be {choices}",
        why=f"{key} = {_show(value)} ({origin}); {known}: {_help(known)}",
        fix=origin.line_for(better_key, better),
    )


def _allowed(annotation: Any, bounds: Sequence[Any]) -> list[str]:
    """What a field takes, in words, from its annotation and limits."""
    kind, inner = get_origin(annotation), get_args(annotation)
    limit = {
        word: getattr(bound, name)
        for bound in bounds
        for name, word in (
            ("ge", "{} or more"),
            ("gt", "above {}"),
            ("le", "at most {}"),
            ("lt", "below {}"),
            ("pattern", "matching {}"),
        )
        if getattr(bound, name, None) is not None
    }
    limits = ", ".join(word.format(number) for word, number in limit.items())
    if kind is Annotated:
        return _allowed(inner[0], inner[1:])
    if kind in (Union, UnionType):
        return [word for part in inner for word in _allowed(part, bounds)]
    if kind is Literal:
        return [f"`{choice}`" for choice in inner]
    if kind is list:
        count = next((f"{b.min_length} " for b in bounds if hasattr(b, "min_length")), "")
        return [f"a list of {count}{'whole numbers' if inner[0] is int else 'numbers'}"]
    if annotation is Interval:
        return ["an interval such as `500 steps`, `2 epochs`, `10 minutes` or `5%`"]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [f"a section with the keys {', '.join(annotation.model_fields)}"]
    words = {int: "a whole number", float: "a number", str: "text", bool: "`true` or `false`"}
    words |= {NoneType: "`null`"}
    takes_limit = limits and annotation in (int, float, str)
    return [words.get(annotation, "a mapping") + (f" ({limits})" if takes_limit else "")]


def _better(key: str, value: Any) -> tuple[str, Any]:
    """A key and a value near the given one that the schema takes, else an example."""
    info = _fields().get(key)
    if info is None:
        return key, 1
    if key in _sections():
        first = next(k for k in _fields() if k.startswith(f"{key}."))
        return _better(first, value)
    candidates: list[Any] = []
    if isinstance(value, str):
        choices = [a for a in _leaves(info.annotation) if isinstance(a, str)]
        candidates += get_close_matches(value.lower(), choices, n=1)
        candidates += [parse_scalar(value.replace("_", "").replace(",", ""))]
        candidates += [{"yes": True, "on": True, "no": False, "off": False}.get(value.lower())]
        candidates += [[parse_scalar(part) for part in value.split(",") if part]]
    elif isinstance(value, float) and math.isfinite(value) and value.is_integer():
        candidates += [int(value)]
    candidates += [
        [value],
        str(value)[:64],
        _EXAMPLES.get(key),
        info.get_default(call_default_factory=True),
    ]
    for candidate in candidates:
        if candidate is not None and _takes(key, candidate):
            return key, candidate
    return key, None


def _leaves(annotation: Any) -> list[Any]:
    inner = get_args(annotation)
    return [leaf for part in inner for leaf in _leaves(part)] if inner else [annotation]


def _takes(key: str, value: Any) -> bool:
    job: dict[str, Any] = {"recipe": "digits"}
    *section, last = key.split(".")
    (job.setdefault(section[0], {}) if section else job)[last] = value
    try:
        Job.model_validate(job)
    except ValidationError:
        return False
    return True
