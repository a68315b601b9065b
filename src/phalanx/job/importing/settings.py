"""Read the settings of another tool, one by one, each with the line that it stands on."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from phalanx.errors import Finding, UserError
from phalanx.job.source.origin import parse_scalar, show
from phalanx.job.source.yaml_nodes import read_text

_MOST = 5000  # aliases of a small file can unfold to gigabytes
_SECRET = re.compile(r"(token|secret|passw(or)?d|(api|access|secret)[_-]?key)$", re.IGNORECASE)
_REFERENCE = re.compile(r"\$\{([A-Za-z_][\w.]*)\}")
_CLASS = ("class_path", "_target_")
_WORDS = {"yes": True, "on": True, "true": True, "no": False, "off": False, "false": False}


class Setting(NamedTuple):
    """One value, and where it was stated."""

    key: str
    value: Any
    place: str
    """`config.yaml:12`, or the command line."""
    sections: tuple[str, ...] = ()
    """Names of the sections around it in lower case, with the classes that they configure."""
    rank: int = 1
    """Which source wins: 0 a launcher's file, 1 any other file, 2 a command line."""

    @property
    def word(self) -> str:
        return self.key.rpartition(".")[2].lower().replace("-", "_")

    def __str__(self) -> str:
        value = "***" if _SECRET.search(self.key) else show(self.value)
        return f"--{self.key} {value}" if self.rank == 2 else f"{self.key} = {value}"


def without_secrets(words: Sequence[str]) -> list[str]:
    """A command line as it may be printed and kept."""
    shown: list[str] = []
    for word, before in zip(words, ["", *words], strict=False):
        name, equals, _ = word.partition("=")
        is_value = before.startswith("-") and "=" not in before and _SECRET.search(before)
        hidden = f"{name}=***" if equals and _SECRET.search(name) else word
        shown.append("***" if is_value else hidden)
    return shown


def read_settings(path: Path) -> list[Setting]:
    """Every value of a JSON or YAML file; none where it holds no mapping."""
    text = read_text(path)
    try:
        if path.suffix == ".json":
            json.loads(text)
            text = text.expandtabs()  # JSON is YAML but for tabs
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        found: list[Setting] = []
        if isinstance(root, yaml.MappingNode):
            for setting in _walk(loader, root, "", (), path):
                found.append(setting)
                if len(found) > _MOST:
                    raise ValueError(f"it holds more than {_MOST} values")
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        problem = " ".join(str(error).split())[:300]
        raise UserError(
            Finding(
                slug="import-unreadable",
                what=f"`{path}` is neither JSON nor YAML",
                why=problem,
                fix=f"python3 -m json.tool {shlex.quote(str(path))}",
            )
        ) from None
    return _resolved(found)


def _walk(
    loader: yaml.SafeLoader, node: yaml.Node, prefix: str, sections: tuple[str, ...], path: Path
) -> Iterator[Setting]:
    entries: list[tuple[str, yaml.Node, int]]
    if isinstance(node, yaml.MappingNode):
        loader.flatten_mapping(node)  # `<<: *defaults`
        entries = [(str(k.value), inner, k.start_mark.line + 1) for k, inner in node.value]
        named = [v.value for k, v in node.value if prefix and k.value in _CLASS]
        sections += tuple(str(name).rpartition(".")[2].lower() for name in named)
    else:
        entries = [(str(i), v, v.start_mark.line + 1) for i, v in enumerate(node.value)]
    for name, inner, line in entries:
        key = f"{prefix}{name}"
        is_section = isinstance(inner, yaml.MappingNode) and inner.value
        if is_section or _holds_sections(inner):
            yield from _walk(loader, inner, f"{key}.", (*sections, name.lower()), path)
        else:
            yield Setting(key, _plain(inner), f"{path}:{line}", sections)


def _holds_sections(node: yaml.Node) -> bool:
    return isinstance(node, yaml.SequenceNode) and any(
        isinstance(item, yaml.CollectionNode) for item in node.value
    )


def _plain(node: yaml.Node) -> Any:
    if isinstance(node, yaml.ScalarNode):
        return node.value if node.style else parse_scalar(node.value)
    return [_plain(item) for item in node.value] if isinstance(node, yaml.SequenceNode) else {}


def _resolved(settings: list[Setting]) -> list[Setting]:
    """The same with `${other.key}` replaced by that key's value."""
    values = {setting.key: setting.value for setting in settings}

    def follow(value: Any, depth: int = 8) -> Any:
        match = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
        return (
            follow(values[match[1]], depth - 1) if match and match[1] in values and depth else value
        )

    return [setting._replace(value=follow(setting.value)) for setting in settings]


# How a value is read, whatever way it is written: `5e-5`, `2_000`, `"16"`, `yes`.


def as_number(value: Any) -> float | int:
    """A number; raises ValueError for anything else."""
    if isinstance(value, str):
        value = parse_scalar(re.sub(r"(?<=\d)_(?=\d)", "", value.strip()))
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("it is not a number")
    return value


def is_number(value: Any) -> bool:
    """True for a number and for a list that holds one."""
    if isinstance(value, list):
        return any(map(is_number, value))
    try:
        as_number(value)
    except ValueError:
        return False
    return True


def as_count(value: Any) -> int:
    """A whole number; `1e3` and `3.0` are some."""
    number = as_number(value)
    if number != int(number):
        raise ValueError("it is not a whole number")
    return int(number)


def as_flag(value: Any) -> bool:
    """True or false, as YAML 1.1 and command lines write them."""
    if isinstance(value, str) and value.strip().lower() in _WORDS:
        return _WORDS[value.strip().lower()]
    if value in (0, 1, True, False):
        return bool(value)
    raise ValueError("it is neither true nor false")


def is_off(value: Any) -> bool:
    """True for what asks for nothing: null, false, an empty text or list."""
    return (
        value is None
        or value is False
        or value in ("", [], {})
        or (
            isinstance(value, str)
            and value.strip().lower() in ("none", "null", "no", "off", "false")
        )
    )
