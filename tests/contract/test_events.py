"""Every kind of event that a reader waits for is written by somebody, and every one that is written
is read; the same for the names of writers and for the marks on the time line of `watch`."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from phalanx.run.event_kinds import KINDS
from phalanx.run.events import EVALUATOR
from phalanx.watch.web.charts import _LANES
from phalanx.watch.web.run_figures import _MARKED
from tests.contract.source import PACKAGE, source_files, tree
from tests.fixtures.recorded import recorded

FOR_PEOPLE: set[str] = set()
"""Kinds that are in the files for people to look at, and that no reader needs."""
TYPES = {kind.__name__: name for name, kind in KINDS.items()}
SHOWN = ("watch", "diagnose", "run")
"""Folders of the readers whose tests take recorded events."""
_EVENT = re.compile(r"(event|e)\.kind|record\['kind'\]")
_IN_LINE = re.compile(r'"kind":"(\w+)"')


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


def written() -> set[str]:
    """Kinds that are made, named in calls of a writer, and in the pairs (kind, fields) of a rank's
    loop."""
    found: set[str] = set()
    for _, node in nodes():
        if isinstance(node, ast.Call) and name_of(node) in TYPES:
            found.add(TYPES[name_of(node)])
        if isinstance(node, ast.Call) and name_of(node) in ("write", "_tell"):
            found |= {a.value for a in node.args if isinstance(a, ast.Constant)} & set(KINDS)
        elif isinstance(node, ast.Tuple) and len(node.elts) == 2:
            kind, fields = node.elts
            if isinstance(fields, ast.Dict) and isinstance(kind, ast.Constant):
                found |= {kind.value} & set(KINDS)
    return found


def read() -> dict[str, set[Path]]:
    """Kinds that readers wait for: compared, matched, asked for, or by the name of a method."""
    found: dict[str, set[Path]] = {}
    for path, node in nodes():
        kinds: set[str] = set()
        if isinstance(node, ast.Compare) and _EVENT.fullmatch(ast.unparse(node.left)):
            kinds = {kind for one in node.comparators for kind in texts(one)}
        elif isinstance(node, ast.MatchClass):
            kinds = {TYPES[name] for name in [ast.unparse(node.cls)] if name in TYPES}
        elif isinstance(node, ast.Call) and name_of(node) == "of_kind":
            kinds = {text for one in node.args for text in texts(one)}
        elif isinstance(node, ast.ClassDef) and "take" in methods(node):
            names = [re.fullmatch("_(take|show)_([a-z]+)", name) for name in methods(node)]
            kinds = {name[2] for name in names if name}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
            kinds = set(_IN_LINE.findall(text))
        for kind in kinds:
            found.setdefault(kind, set()).add(path)
    return found


def methods(node: ast.ClassDef) -> set[str]:
    return {one.name for one in node.body if isinstance(one, ast.FunctionDef)}


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
