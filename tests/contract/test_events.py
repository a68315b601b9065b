"""Every kind of event that a reader waits for is written by somebody, and every one that is written
is read; the same for the names of writers and for the marks on the time line of `watch`."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from phalanx.run.event_kinds import KINDS
from phalanx.run.events import EVALUATOR
from phalanx.watch.web.charts import _LANES
from phalanx.watch.web.run_figures import _MARKED
from tests.contract.source import PACKAGE, source_files, tree
from tests.fixtures.recorded import recorded

FOR_PEOPLE: set[str] = set()
"""Kinds that are in the files for people to look at, and that no reader needs."""
SHOWN = ("watch", "diagnose", "run")
"""Folders of the readers whose tests take recorded events."""
_IN_LINE = re.compile(r'"kind":"(\w+)"')
_NAMES = {made.__name__: kind for kind, made in KINDS.items()}
_READERS = ("isinstance", "of_kind", "events_of", "_step")
"""Functions that take types of events and look for these."""


def texts(node: ast.AST) -> set[str]:
    return {
        one.value
        for one in ast.walk(node)
        if isinstance(one, ast.Constant) and isinstance(one.value, str)
    }


def nodes() -> Iterator[tuple[Path, ast.AST]]:
    for path in source_files():
        if not path.is_relative_to(PACKAGE / "recipes"):
            yield from ((path, node) for node in ast.walk(tree(path)))


def name_of(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def kinds_in(node: ast.AST, path: Path) -> set[str]:
    """Kinds whose types are named in an expression: other types may have the same name."""
    known = imported_kinds(path)
    return {known[text] for one in ast.walk(node) if (text := ast.unparse(one)) in known}


@cache
def imported_kinds(path: Path) -> dict[str, str]:
    """Kinds by the names that their types have in a file."""
    found = {f"event_kinds.{name}": kind for name, kind in _NAMES.items()}
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and node.module == "phalanx.run.event_kinds":
            found |= {
                one.asname or one.name: _NAMES[one.name] for one in node.names if one.name in _NAMES
            }
    return found


def written() -> set[str]:
    """Kinds that are made."""
    found: set[str] = set()
    for path, node in nodes():
        if isinstance(node, ast.Call) and "event_kinds" not in path.parts:
            found |= kinds_in(node.func, path)
    return found


def read() -> dict[str, set[Path]]:
    """Kinds that readers wait for: in a `match`, looked for, or a key of a table."""
    found: dict[str, set[Path]] = {}
    for path, node in nodes():
        kinds: set[str] = set()
        if isinstance(node, ast.MatchClass):
            kinds = kinds_in(node.cls, path)
        elif isinstance(node, ast.Call) and name_of(node) in _READERS:
            kinds = {kind for one in node.args for kind in kinds_in(one, path)}
        elif isinstance(node, ast.Dict) and "event_kinds" not in path.parts:
            kinds = {kind for one in node.keys if one is not None for kind in kinds_in(one, path)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
            kinds = set(_IN_LINE.findall(text))
        for kind in kinds:
            found.setdefault(kind, set()).add(path)
    return found


def test_every_kind_has_a_writer() -> None:
    assert written() == set(KINDS)


def test_every_kind_that_is_read_is_written_and_the_other_way() -> None:
    kinds = read()
    assert {kind: paths for kind, paths in kinds.items() if kind not in KINDS} == {}
    assert set(KINDS) - set(kinds) == FOR_PEOPLE


def test_every_kind_that_is_shown_is_recorded_for_tests() -> None:
    folders = [PACKAGE / folder for folder in SHOWN]
    shown = {
        kind
        for kind, paths in read().items()
        if any(path.is_relative_to(folder) for path in paths for folder in folders)
    }
    assert shown - {kind for kind, _ in recorded()} == set()


def test_watch_shows_every_kind_that_is_in_a_run() -> None:
    read_by = read()
    missed = {kind for kind, _ in recorded() if PACKAGE / "watch/state.py" not in read_by[kind]}
    assert missed == set()


def test_every_writer_that_is_compared_with_writes() -> None:
    names: set[str] = set()
    for _, node in nodes():
        if isinstance(node, ast.Call) and name_of(node) == "EventWriter":
            names |= texts(node.args[1]) if not isinstance(node.args[1], ast.JoinedStr) else set()
    asked: set[str] = set()
    for _, node in nodes():
        if isinstance(node, ast.Compare) and ast.unparse(node.left).endswith(".writer"):
            asked |= {text for one in node.comparators for text in texts(one)}
    assert asked <= names | {EVALUATOR}


def test_every_mark_of_the_time_line_is_made_and_has_a_place() -> None:
    made: set[str] = set()
    for path, node in nodes():
        if path.name == "state.py" and isinstance(node, ast.Call) and name_of(node) == "_note":
            made |= {a.value for a in node.args if isinstance(a, ast.Constant)}
    assert made == set(_LANES)
    assert set(_MARKED) <= made
