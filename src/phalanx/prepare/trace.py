"""Asks the engine, in a child process, what a recipe is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phalanx.codec import from_json, to_json
from phalanx.errors import Finding
from phalanx.planner.schema.trace import EAGER, Trace, TraceAnswer, TraceQuestion
from phalanx.prepare.engine_child import ask_engine
from phalanx.prepare.launcher import Launcher

_TIMEOUT_S = 600

Answer = tuple[Trace | None, list[Finding]]
AskTrace = Callable[[str, dict[str, Any], tuple[str, ...]], Answer]
"""Of a recipe, its options, and the precisions that are wanted, `+compiled` where the code is."""


def trace_recipe(
    spec: str,
    options: dict[str, Any],
    precisions: tuple[str, ...] = EAGER,
    launcher: Launcher | None = None,
    say: Callable[[str], None] = lambda text: None,
    *,
    is_evaluation: bool = False,
) -> Answer:
    """The Trace of a recipe with these options, and what is wrong with either; for an evaluation
    the test split alone is looked at."""
    asked = TraceQuestion(
        recipe=spec, options=options, precisions=precisions, is_evaluation=is_evaluation
    )
    record, silent_because = ask_engine(
        "trace", to_json(asked), timeout_s=_TIMEOUT_S, launcher=launcher, say=say
    )
    if record is None:
        return None, [_silent(spec, silent_because)]
    try:
        answer = from_json(TraceAnswer, record)
    except ValueError as error:
        return None, [_silent(spec, f"its answer: {error}")]
    return answer.trace, answer.findings


def _silent(spec: str, why: str) -> Finding:
    return Finding(
        slug="trace-failed",
        what=f"the recipe `{spec}` could not be looked at",
        why=f"the child process that builds its model and data ended early: {why}",
        fix="phalanx check",
    )
