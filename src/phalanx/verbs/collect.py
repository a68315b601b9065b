"""Makes data for a recipe that collects its own: `phalanx recipes collect RECIPE key=value`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from phalanx.errors import ExitCode, Finding, UserError, errors_of
from phalanx.job.load import parse_override
from phalanx.prepare.engine_child import ask_engine, findings_of
from phalanx.recipe.loading import absolute_spec

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
    asked = {
        "recipe": absolute_spec(recipe),
        "settings": {override.key: override.value for override in given},
        "out": str(out.absolute()) if out is not None else None,
    }
    answer, why = ask_engine("collect", asked, timeout_s=_SILENT_S, say=say)
    if answer is None:
        raise UserError(_silent(recipe, why), exit_code=ExitCode.FAILED)
    findings = findings_of(answer)
    if errors_of(findings):
        is_crash = any(finding.slug == "collect-failed" for finding in findings)
        raise UserError(findings, exit_code=ExitCode.FAILED if is_crash else ExitCode.USAGE)
    return Collection(Path(answer["path"]), answer["said"])


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
