"""What a run says of ranks that died: a `death` event for each, and the cause in the place of a
Finding that only says how one ended: the judgement of `phalanx doctor`, from the same files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from phalanx.errors import Finding
from phalanx.machine.oom import count_oom_kills
from phalanx.run.directory import RunDirectory
from phalanx.run.event_kinds import Death
from phalanx.run.heartbeat import Beat
from phalanx.run.launching import RankDeath


class PostMortem:
    """Of one run, attempt by attempt."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._oom_kills = count_oom_kills()

    def examine(
        self,
        deaths: Sequence[RankDeath],
        attempt: int,
        findings: list[Finding],
        write: Callable[[Death], object],
        beats: Mapping[int, Beat] = MappingProxyType({}),
    ) -> list[Finding]:
        """Write down who died and how, and explain it. Never fails: a run that has died must still
        say so. `beats` says where each rank was, as last heard."""
        before, now = self._oom_kills, count_oom_kills()
        self._oom_kills = now
        kills = now - before if now is not None and before is not None else None
        for death in deaths:
            beat = beats.get(death.rank)
            write(
                Death(
                    rank=death.rank,
                    exit_code=death.exit_code,
                    was_ended=death.was_ended,
                    phase=None if beat is None else beat.phase.name.lower(),
                    step=None if beat is None else beat.step,
                    oom_kills=kills,
                )
            )
        if not findings:
            return findings
        try:
            # Not for a run that ends in order: reading the table takes a while.
            from phalanx.diagnose.death import explain_end
            from phalanx.diagnose.scene import Scene

            return explain_end(Scene(self._run, is_brief=True), attempt, findings)
        except Exception as error:  # a check must not raise: it is said instead
            return [*findings, _unexplained(error)]


def _unexplained(error: Exception) -> Finding:
    return Finding(
        slug="doctor-failed",
        what=f"the cause could not be looked for: {type(error).__name__}: {error}",
        why="raised while logs and events of the run were read",
        fix="phalanx doctor",
        severity="note",
    )
