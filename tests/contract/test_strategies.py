"""Strategies are told apart by facts; by name only where a person named one, or one is built."""

import ast

from phalanx.job.strategies import STRATEGIES
from tests.contract.source import PACKAGE, source_files

# What the job asks for, its messages, and the choice itself.
BY_NAME = {
    "job/deepspeed_rules.py",
    "job/device_rules.py",
    "places/remote/environment.py",
    "planner/choices/devices.py",
    "planner/choices/other_strategies.py",
    "planner/choices/strategy.py",
    "planner/resize.py",
    "planner/trace_precisions.py",
    "engine/rank/assembly.py",
    "verbs/verify.py",
}
NAMES = {name for name in STRATEGIES if name != "exact"}


def compares_by_name(tree):
    return any(
        isinstance(node, ast.Compare)
        and "strategy" in ast.unparse(node)
        and any(isinstance(n, ast.Constant) and n.value in NAMES for n in ast.walk(node))
        for node in ast.walk(tree)
    )


def test_nothing_else_compares_names_of_strategies():
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in source_files()
        if compares_by_name(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found - BY_NAME == set(), "ask phalanx.job.strategies.facts_of instead"
    assert BY_NAME - found == set(), "no longer needed in the list"
