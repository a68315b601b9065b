"""`phalanx doctor`: a run directory in, what is the matter with it out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from phalanx.codec import to_json
from phalanx.diagnose.attempt_end import UNKNOWN, Death
from phalanx.diagnose.curves import judge_curves
from phalanx.diagnose.death import GENERIC_SLUGS, find_death
from phalanx.diagnose.facts import facts_of_run
from phalanx.diagnose.matching import all_causes
from phalanx.diagnose.scene import Scene
from phalanx.diagnose.slow import SpeedFigures, judge_speed, speed_figures
from phalanx.errors import Finding
from phalanx.run.directory import RunDirectory
from phalanx.run.event_kinds import Body, Checkpoint, Evaluated, Step
from phalanx.run.lock import is_held

SCHEMA_VERSION = 1
"""Of what `--json` prints; raised when a field changes its meaning or goes."""

BAD = ("failed", "gone")
"""What a run may be that has not gone as asked."""


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What is the matter with a run."""

    run: str
    kind: str
    """train or launch."""
    status: str
    """finished, stopped, failed, running, or gone: the command ended without a word."""
    step: int | None
    saved_step: int | None
    """Of the newest checkpoint; None where there is none, or only a script's own."""
    cause: str | None
    """Name of the cause, `unknown`, or None when nothing went wrong."""
    verdict: str
    """One sentence."""
    fix: str | None
    death: Death | None
    """How the last attempt ended, when it ended badly."""
    earlier: list[Death] = field(default_factory=list)
    """Attempts before it that were started again."""
    findings: list[Finding] = field(default_factory=list)
    """What else there is to say: of its end, its speed, its curves."""
    speed: SpeedFigures
    evaluated: dict[str, dict[str, float]] = field(default_factory=dict)
    """Return the last result of `phalanx evaluate` on the test split and in each benchmark."""

    @property
    def is_bad(self) -> bool:
        return self.status in BAD

    def to_json(self) -> dict[str, Any]:
        return {"schema_version": SCHEMA_VERSION, **to_json(self)}


def examine(run: RunDirectory) -> Diagnosis:
    """Read a run directory and say what is the matter; writes nothing."""
    scene = Scene(run)
    status = _status(scene)
    last = scene.last_attempt
    death = find_death(scene, last) if status in BAD else None
    earlier = [found for number in range(last) if (found := find_death(scene, number)) is not None]
    said = _said(scene)
    findings = [*judge_curves(scene), *judge_speed(scene)]
    cause, verdict, fix = _verdict(scene, status, death, said, findings, len(earlier))
    return Diagnosis(
        run=str(run.path),
        kind="launch" if scene.is_script else "train",
        status=status,
        step=_step(scene, Step, Checkpoint),
        saved_step=_step(scene, Checkpoint),
        cause=cause,
        verdict=verdict,
        fix=fix,
        death=death,
        earlier=earlier,
        findings=[*_more(said, death), *findings],
        speed=speed_figures(scene),
        evaluated={
            found.benchmark or "test split": found.metrics for found in scene.of_kind(Evaluated)
        },
    )


def _status(scene: Scene) -> str:
    outcome = scene.outcome()
    if outcome is not None:
        return outcome.status
    return "running" if is_held(scene.run) else "gone"


def _said(scene: Scene) -> list[Finding]:
    """What the command itself said at the end."""
    outcome = scene.outcome()
    return outcome.findings if outcome is not None else []


def _more(said: list[Finding], death: Death | None) -> list[Finding]:
    """What the command said besides the cause, such as a crash loop."""
    rest = said[1:] if said else []
    return [finding for finding in rest if death is None or finding.slug != death.cause]


def _verdict(
    scene: Scene,
    status: str,
    death: Death | None,
    said: list[Finding],
    findings: list[Finding],
    deaths: int,
) -> tuple[str | None, str, str | None]:
    again = facts_of_run(scene)["again"]
    if status not in BAD:
        worst = next((finding for finding in findings if finding.severity != "note"), None)
        if worst is None:
            if deaths:
                times = f"{deaths} time{'' if deaths == 1 else 's'}"
                return None, f"{status}; its ranks died {times} on the way, see below", None
            return None, f"{status}, and nothing is wrong with it", None
        return worst.slug, f"{status}; {worst.what}", worst.fix
    is_known = death is not None and death.is_known
    # What the command found by other means, such as no smaller plan that fits, knows more.
    if said and said[0].slug not in (*GENERIC_SLUGS, *(_table_names() if is_known else ())):
        return said[0].slug, said[0].what, said[0].fix
    if death is not None:
        return death.cause, f"{death.place}: {death.words}", death.fix
    if said:
        return said[0].slug, said[0].what, said[0].fix
    if status == "gone":
        words = "the command that held this run ended without a word: it was killed, or the machine"
        return "command-killed", f"{words} went down", again
    return UNKNOWN, "it failed, and neither events nor logs say why", f"less +G {scene.run.logs}"


def _table_names() -> set[str]:
    return {cause.name for cause in all_causes()}


def _step(scene: Scene, *kinds: type[Body]) -> int | None:
    steps = [event.step for kind in kinds for event in scene.events_of(kind)]
    return max((step for step in steps if step is not None), default=None)
