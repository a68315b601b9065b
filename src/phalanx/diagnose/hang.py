"""A group of ranks that hung, from what the supervisor wrote down of it."""

from __future__ import annotations

from pathlib import Path

from phalanx.diagnose.attempt_end import Death
from phalanx.diagnose.facts import facts_of_run
from phalanx.diagnose.logs import LogLine, read_tail
from phalanx.diagnose.scene import Scene
from phalanx.errors import format_seconds
from phalanx.run import event_kinds

_SHOWN_LINES = 4


def find_hang(scene: Scene, attempt: int) -> Death | None:
    """The `hang` event of an attempt with the lines of its stacks; None without one."""
    found = scene.of_kind(event_kinds.Hang, attempt)
    if not found:
        return None
    said, rank = found[-1], found[-1].rank
    who = "the ranks hang" if rank is None else f"rank {rank} hangs"
    waited = f": nothing moved for {format_seconds(said.silent_s)}"
    words = "; ".join([f"{who}{waited}", *(text for text in (said.because, said.line) if text)])
    stacks = _stacks_file(scene, said, attempt)
    facts = facts_of_run(scene)
    return Death(
        cause="rank-hung",
        grade="finding",
        rank=rank or 0,
        attempt=attempt,
        time_s=scene.events_of(event_kinds.Hang, attempt)[-1].time_s,
        phase=said.phase,
        step=said.step,
        words=words,
        fix=f"see where every rank was: `less {facts['run']}/{stacks}`; then `{facts['again']}`",
        evidence=_lines(scene, stacks, rank),
    )


def _stacks_file(scene: Scene, said: event_kinds.Hang, attempt: int) -> str:
    """Relative to the run, which may have moved since."""
    named = Path(said.file or f"hang-{attempt}.txt").name
    return f"{scene.run.logs.name}/{named}"


def _lines(scene: Scene, stacks: str, rank: int | None) -> list[LogLine]:
    """The beginning of what was written of the culprit, or of all."""
    lines = read_tail(scene.run.path / stacks, scene.run.path)
    begin = f"rank {rank}:" if rank is not None else "rank "
    start = next((i for i, line in enumerate(lines) if line.text.startswith(begin)), None)
    return lines[start : start + _SHOWN_LINES] if start is not None else []
