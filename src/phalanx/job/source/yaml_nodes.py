"""A job file as YAML nodes with their lines; everything that is no plain data is refused."""

from __future__ import annotations

import shlex
import stat
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from phalanx.errors import Finding, UserError
from phalanx.job.source.origin import show

MAX_FILE_BYTES = 1 << 20  # a job file is a page; a megabyte is somebody's data or weights
MAX_DEPTH = 32


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
            raise UserError(too_deep(f"{self.name}:{line}"))
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def read_text(path: Path) -> str:
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
                what=f"the job file {show(str(path))} cannot be read",
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


def too_deep(where: str) -> Finding:
    return Finding(
        slug="too-deep",
        what=f"the job is nested more than {MAX_DEPTH} levels deep",
        why=f"reached at {where}",
        fix="put nested data into a file of its own and name that file under `options`",
    )


def compose(text: str, name: str, *, top: str | None = "recipe: digits") -> yaml.Node:
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
        why=f"line {line + 1} reads {show(bad)}",
        fix=f"indent with spaces: {show(bad.expandtabs(2))}"
        if has_tab
        else "write one `key: value` per line, and text with special characters in quotes",
    )
