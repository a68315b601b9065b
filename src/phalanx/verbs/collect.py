"""Makes data for a recipe that collects its own: `phalanx recipes collect RECIPE key=value`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from phalanx.errors import Finding, UserError
from phalanx.job.load import parse_override
from phalanx.prepare.engine_child import require_answer
from phalanx.recipe.loading import absolute_spec
from phalanx.recipe.questions import CollectAnswer, CollectQuestion

_SILENT_S = 3600.0  # without any progress


@dataclass(frozen=True)
class Collection:
    """What was collected."""

    path: Path
    said: list[str]


def collect_data(
    recipe: str,
    settings: Sequence[str],
    *,
    out: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Collection:
    """Let a recipe make its data; `out` is a new folder. Raises UserError."""
    if out is not None and out.exists():
        raise UserError(_exists(recipe, out))
    given = [parse_override(text) for text in settings]
    asked = CollectQuestion(
        recipe=absolute_spec(recipe),
        settings={override.key: override.value for override in given},
        out=out.absolute() if out is not None else None,
    )
    answer, _ = require_answer(
        "collect",
        asked,
        CollectAnswer,
        timeout_s=_SILENT_S,
        silent=partial(_silent, recipe),
        say=say,
    )
    assert answer.path is not None  # there is a Finding otherwise
    return Collection(answer.path, answer.said)


def _exists(recipe: str, out: Path) -> Finding:
    return Finding(
        slug="folder-exists",
        what=f"`{out}` already exists",
        why="collecting would overwrite what is there",
        fix=f"phalanx recipes collect {recipe} --out {out}_2",
    )


def _silent(recipe: str, why: str) -> Finding:
    return Finding(
        slug="collect-silent",
        what=f"collecting for `{recipe}` gave no result",
        why=f"the process that did it ended early: {why}",
        fix="workers=1, if memory is short",
    )
