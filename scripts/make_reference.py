"""Writes from the code what must not differ from it: the pages of docs/reference, the page of
symptoms and the JSON Schema of job files.

python scripts/make_reference.py            write the pages
python scripts/make_reference.py --check    exit 1 and name the pages that are out of date
"""

from __future__ import annotations

import ast
import inspect
import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from typer.main import get_command

from phalanx.cli.main import app
from phalanx.diagnose.causes import SUBJECTS
from phalanx.errors import ExitCode
from phalanx.job.editor import SCHEMA_FILE, schema_text
from phalanx.job.keys import ALIASES, job_keys
from phalanx.job.schema import Job
from phalanx.run.event_kinds import KINDS

sys.path.insert(0, str(Path(__file__).parent))  # run as a file or imported by tests

from symptoms import symptoms_page

ROOT = Path(__file__).resolve().parents[1]
NOTE = "\n<!-- Made by scripts/make_reference.py: change the code and run `make reference`. -->\n"
REFERENCE = ROOT / "docs" / "reference"
PACKAGE = ROOT / "src" / "phalanx"


def pages() -> dict[str, str]:
    """Every page of the reference by file name."""
    made = {
        "commands.md": commands_page(),
        "job.md": job_page(),
        "findings.md": findings_page(),
        "causes.md": causes_page(),
        "events.md": events_page(),
        "exit-codes.md": exit_codes_page(),
    }
    return {name: text.rstrip("\n") + "\n" + NOTE for name, text in made.items()}


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; bars inside cells are escaped."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(c.replace("|", r"\|") for c in row) + " |\n" for row in lines)


# Commands


def commands_page() -> str:
    parts = ["# Commands\n"]
    parts.extend(_command_parts(get_command(app), "phalanx"))
    return "\n".join(parts)


def _command_parts(command: Any, name: str) -> Iterator[str]:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    subcommands = getattr(command, "commands", {})
    words = [name, *(f"[{_argument_name(a)}]" for a in arguments)]
    words += ["COMMAND"] if subcommands else []
    words += ["[OPTIONS]"] if options else []
    yield f"## `{name}`\n"
    yield f"```text\n{' '.join(words)}\n```\n"
    yield f"{inspect.cleandoc(command.help or '')}\n"
    if arguments:
        yield table(
            ["argument", "meaning"], ([f"`{_argument_name(a)}`", a.help] for a in arguments)
        )
    if options:
        yield table(["option", "takes", "meaning"], map(_option_row, options))
    for sub, child in subcommands.items():
        yield from _command_parts(child, f"{name} {sub}")


def _argument_name(argument: Any) -> str:
    shown = argument.metavar or argument.name.upper()
    return f"{shown}..." if argument.nargs == -1 else str(shown)


def _option_row(option: Any) -> list[str]:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    default = option.default
    is_said = option.is_flag or default is None or callable(default)
    meaning = option.help if is_said else f"{option.help} Default: `{default}`."
    return [names, _option_takes(option), meaning]


def _option_takes(option: Any) -> str:
    if option.is_flag:
        return ""
    if option.metavar:
        return f"`{option.metavar}`"
    kind = option.type_descriptor.annotation
    parts = getattr(kind, "__args__", None) or (kind,)
    words = {int: "a whole number", float: "a number", str: "text", Path: "a path"}
    return " and ".join(words.get(part, part.__name__) for part in parts)


# Job keys


def job_page() -> str:
    schema = Job.model_json_schema()
    rows: dict[str, list[list[str]]] = {"": []}
    for key, meaning in job_keys().items():
        node = _node(schema, key)
        section, _, last = key.rpartition(".")
        if "properties" in node:
            rows[key] = []
            continue
        rows[section].append([f"`{last}`", _takes(schema, node), _default(schema, key), meaning])
    parts = [
        "# Job keys\n",
        "A job file is YAML. On the command line every key is `KEY=VALUE`, sections with a dot: "
        "`optimizer.lr=0.01`. `phalanx explain KEY` prints one of these lines. "
        "Anchors, aliases and tags are refused.\n",
    ]
    for section, lines in rows.items():
        heading = f"## `{section}`\n\n{job_keys()[section]}\n" if section else "## Top level\n"
        parts += [heading, table(["key", "takes", "default", "meaning"], lines)]
    short = ([f"`{name}`", f"`{key}`"] for name, key in ALIASES.items())
    parts += [
        "## Short names\n\nThese stand for a key in an override; any other bare name is an option "
        "of the recipe.\n",
        table(["short", "key"], short),
    ]
    return "\n".join(parts)


def _resolve(schema: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in node:
        found: dict[str, Any] = schema["$defs"][node["$ref"].rpartition("/")[2]]
        return found
    return node


def _node(schema: dict[str, Any], key: str) -> dict[str, Any]:
    node = schema
    for part in key.split("."):
        node = _resolve(schema, node["properties"][part])
    return node


def _takes(schema: dict[str, Any], node: dict[str, Any]) -> str:
    node = _resolve(schema, node)
    if "anyOf" in node:
        parts = [part for part in node["anyOf"] if part.get("type") != "null"]
        return " or ".join(dict.fromkeys(_takes(schema, part) for part in parts))
    if "const" in node:
        return f"`{node['const']}`"
    if "enum" in node:
        return ", ".join(f"`{choice}`" for choice in node["enum"])
    if "examples" in node:
        return "an interval: " + ", ".join(f"`{example}`" for example in node["examples"])
    if node.get("type") == "array":
        return f"a list of `{node['items']['type']}`"
    words = {
        "integer": "a whole number",
        "number": "a number",
        "string": "text",
        "boolean": "`true` or `false`",
        "null": "`null`",
        "object": "a mapping",
    }
    limits = {
        "minimum": "{} or more",
        "exclusiveMinimum": "above {}",
        "maximum": "at most {}",
        "exclusiveMaximum": "below {}",
    }
    bounds = [text.format(node[name]) for name, text in limits.items() if name in node]
    return words[node["type"]] + (f" ({', '.join(bounds)})" if bounds else "")


def _default(schema: dict[str, Any], key: str) -> str:
    section, _, last = key.rpartition(".")
    holder = _node(schema, section) if section else schema
    if last in holder.get("required", ()):
        return "must be given"
    default = holder["properties"][last].get("default")
    if default is None:
        return ""
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return f"`{default}`"


# Findings


@dataclass(frozen=True)
class FoundFinding:
    """A Finding as it stands in the source."""

    slug: str
    severity: str
    what: str
    path: str


def findings_page() -> str:
    rows = [
        [f"`{f.slug}`", f.severity, f.what, f"`{f.path}`"]
        for f in sorted(set(find_findings()), key=lambda f: (f.slug, f.path, f.what, f.severity))
    ]
    return (
        "# Findings\n\nEverything Phalanx can tell you is wrong, by the name in brackets. "
        "`{...}` stands for a value; *why* and *fix* are printed with it. Errors end the command, "
        "warnings and notes do not.\n\n" + table(["name", "severity", "what", "where"], rows)
    )


def find_findings() -> Iterator[FoundFinding]:
    """Every `Finding(slug=...)` in the source, by reading it."""
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(module):
            if not (isinstance(node, ast.Call) and ast.unparse(node.func) == "Finding"):
                continue
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            if "slug" not in given:
                continue
            yield FoundFinding(
                slug=str(ast.literal_eval(given["slug"])),
                severity=_severity(given.get("severity")),
                what=_template(given["what"]),
                path=path.relative_to(PACKAGE.parent).as_posix(),
            )


def _severity(node: ast.expr | None) -> str:
    if node is None:
        return "error"
    choices = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)]
    return " or ".join(sorted({c for c in choices if c in ("error", "warning", "note")}))


def _template(node: ast.expr) -> str:
    """The text of a string expression with `{...}` for what is only known when it runs."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_template(part) for part in node.values)
    if isinstance(node, ast.FormattedValue) and isinstance(node.value, (ast.Name, ast.Attribute)):
        return f"{{{ast.unparse(node.value).rpartition('.')[2]}}}"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _template(node.left) + _template(node.right)
    return "{...}"


# Causes of death


def causes_page() -> str:
    parts = [
        "# Causes\n",
        "What `phalanx doctor` can name, and what a run that died says at its end. The name is "
        "that of the Finding; `{...}` stands for what is read from logs, events, job and plan. An "
        "*echo* only says that another rank was gone or late: any rank's own cause wins over it. A "
        "*symptom* gives way to what says more, and so does *generic*. Where no row fits the "
        "answer is `unknown`, with the last lines. The guide is [doctor](../guide/doctor.md).\n",
    ]
    for subject, causes in SUBJECTS.items():
        rows = (
            [f"`{c.name}`", c.grade, c.words, c.fix, c.script_fix or "the same"] for c in causes
        )
        header = ["name", "grade", "in words", "fix", "fix for a launched script"]
        parts += [f"## {subject.capitalize()}\n", table(header, rows)]
    return "\n".join(parts)


# Events and exit codes


def field_docs(kind: type) -> dict[str, str]:
    """The docstring under each field of a dataclass."""
    body = ast.parse(inspect.getsource(kind)).body[0].body
    return {
        field.target.id: " ".join(inspect.cleandoc(doc.value.value).split())
        for field, doc in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(doc, ast.Expr)
    }


def events_page() -> str:
    parts = [
        "# Events\n",
        "A run writes what happens to `events/<writer>.jsonl`, one JSON object per line, one file "
        "per rank and one for the supervisor. Every line has `v` (format), `t` (seconds since "
        "1970), `kind`, `writer` (`rank-0`, "
        "`supervisor`, `evaluate`), `attempt` (the start of the ranks that it belongs to) and "
        "`run` (id of the run, as in `attempt.json`; absent in runs of version 0.1); each kind "
        "adds its own fields. Readers drop an event of another run, and one of an attempt that was "
        "over when the next one had begun to write.\n",
    ]
    for kind, made in KINDS.items():
        rows = ([f"`{name}`", meaning] for name, meaning in field_docs(made).items())
        parts += [f"## `{kind}`\n", table(["field", "meaning"], rows)]
    return "\n".join(parts)


def exit_codes_page() -> str:
    meanings = dict(_field_docstrings(ExitCode))
    rows = [[str(int(code)), f"`{code.name}`", meanings[code.name]] for code in ExitCode]
    return "# Exit codes\n\n" + table(["code", "name", "meaning"], rows)


def _field_docstrings(kind: type) -> Iterator[tuple[str, str]]:
    """(name, the string under it) for the assignments of a class body."""
    body = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(body, ast.ClassDef)
    for node, below in zip(body.body, body.body[1:], strict=False):
        if isinstance(node, ast.Assign) and isinstance(below, ast.Expr):
            yield ast.unparse(node.targets[0]), str(ast.literal_eval(below.value))


def main(argv: Sequence[str]) -> int:
    files = {REFERENCE / name: text for name, text in pages().items()}
    files[SCHEMA_FILE] = schema_text()
    said = {finding.slug: finding.what for finding in reversed(list(find_findings()))}
    files[ROOT / "docs" / "guide" / "troubleshooting.md"] = symptoms_page(said) + NOTE
    stale = []
    for path, text in files.items():
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(path.relative_to(ROOT).as_posix())
        if "--check" not in argv:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if "--check" in argv:
        for name in stale:
            typer.echo(f"{name} is out of date: run `make reference`", err=True)
        return 1 if stale else 0
    typer.echo(f"{len(stale)} of {len(files)} generated files written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
