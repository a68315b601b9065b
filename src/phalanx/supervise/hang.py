"""Whether a group hangs: no rank has moved for longer than its phase allows.

A rank that waits for another one is as silent as that one, so a group hangs when all of it is
silent: every rank for longer than the limit of the phase it is in itself. While one of them saves,
evaluates or compiles within its limit, those that wait for it are excused.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.errors import Finding, format_seconds
from phalanx.job.schema import Hang as Limits
from phalanx.job.schema import Job
from phalanx.planner.schema.plan import Plan
from phalanx.run.event_kinds import Hang
from phalanx.run.heartbeat import Beat, Part, Phase
from phalanx.run.launching import Witness
from phalanx.supervise.culprit import find_culprit

_LEAST_S = 60.0
_TIMES = 5.0
_WARM_STEPS = 3  # kernels are searched for, memory is found, and code is compiled in the first ones
_REMEMBERED = 64


@dataclass(frozen=True)
class Hung:
    """A group in which nothing moves, told by the rank that is silent beyond its limit longest."""

    rank: int
    silent_s: float
    limit_s: float
    limit_reason: str


def watch_for(job: Job, plan: Plan) -> HangWatch:
    """The watch over the ranks of a job."""
    is_ahead = plan.devices.device.value != "cpu"
    return HangWatch(job.hang, steps_ahead=job.logging.every if is_ahead else 1)


class HangWatch:
    """Learns how long steps take, and says when a group hangs."""

    def __init__(self, limits: Limits, *, steps_ahead: int = 1) -> None:
        """`steps_ahead`: how many steps a rank may have handed to its GPU before it reads a loss,
        and so waits for all of them; 1 on a CPU."""
        self._limits = limits
        self._steps_ahead = steps_ahead
        self._seen: deque[tuple[float, int]] = deque(maxlen=_REMEMBERED)
        self._last: tuple[int, float] | None = None

    @property
    def step_s(self) -> float | None:
        """How long a step takes, by the last ones seen. All of them together: a host that runs
        ahead of its GPU does many at once, and then none for a while."""
        if not self._seen:
            return None
        return sum(seconds for seconds, _ in self._seen) / sum(steps for _, steps in self._seen)

    def new_attempt(self) -> None:
        """Steps take as long as before; counting them begins again."""
        self._last = None

    def look(self, beats: Mapping[int, Beat]) -> Hung | None:
        """Whether the group hangs, by what was heard of it last."""
        self._learn(beats)
        running = [beat for beat in beats.values() if beat.phase is not Phase.OVER]
        if not running or self._limits.after_s is None:
            return None
        verdicts = []
        for beat in running:
            limit_s, reason = self.limit_of(beat)
            if beat.silent_s <= limit_s:
                return None
            verdicts.append(Hung(beat.rank, beat.silent_s, limit_s, reason))
        return max(verdicts, key=lambda hung: hung.silent_s - hung.limit_s)

    def limit_of(self, beat: Beat) -> tuple[float, str]:
        """How long this rank may be silent where it is, and why."""
        limits, phase = self._limits, beat.phase
        if phase is Phase.STEP and not self._is_warm(beat):
            phase = Phase.COMPILE
        if phase is Phase.STEP:
            own = self._step_limit(self._steps_ahead if beat.part is Part.READ else 1)
            if beat.part is Part.DATA and own[0] < limits.data_s:
                return limits.data_s, "hang.data_s"
            return own
        name = {
            Phase.START: "start_s",
            Phase.COMPILE: "compile_s",
            Phase.EVALUATE: "evaluate_s",
            Phase.SAVE: "save_s",
            Phase.EXPORT: "save_s",
        }[phase]
        return getattr(limits, name), f"hang.{name}"

    def _is_warm(self, beat: Beat) -> bool:
        """Whether a step now takes what steps take. On a GPU that is known once it was waited
        for."""
        is_known = self._steps_ahead == 1 or beat.seconds[Part.READ] > 0
        return is_known and beat.step - beat.first_step >= _WARM_STEPS

    def _step_limit(self, steps: int) -> tuple[float, str]:
        step_s, after = self.step_s, self._limits.after_s
        if after != "auto":
            assert after is not None
            return after, "hang.after_s"
        learned = _TIMES * steps * step_s if step_s is not None else 0.0
        if learned > _LEAST_S:
            assert step_s is not None
            ahead = "" if steps == 1 else f", and the GPU may have {steps} of them left to do"
            takes = f"{_TIMES:.0f} times a step, which takes {format_seconds(step_s)}"
            return learned, takes + ahead
        return _LEAST_S, "the least for a step"

    def _learn(self, beats: Mapping[int, Beat]) -> None:
        steps = [beat.step for beat in beats.values() if beat.phase is Phase.STEP]
        if not steps:
            self._last = None
            return
        now, step = time.monotonic(), min(steps)
        if self._last is None or step < self._last[0]:
            self._last = step, now
        elif step > self._last[0]:
            first = max(beat.first_step for beat in beats.values())
            if self._last[0] - first >= _WARM_STEPS:
                self._seen.append((now - self._last[1], step - self._last[0]))
            self._last = step, now


def hang_event(hung: Hung, beats: Mapping[int, Beat], witnesses: list[Witness], file: Path) -> Hang:
    """The `hang` event: who is to blame, where it is, what says so."""
    by_rank = {witness.rank: witness for witness in witnesses}
    culprit = find_culprit(beats, by_rank)
    beat = beats[hung.rank if culprit.rank is None else culprit.rank]
    witness = by_rank.get(beat.rank)
    return Hang(
        rank=culprit.rank,
        because=culprit.because,
        phase=beat.phase.name.lower(),
        part=beat.part.name.lower(),
        step=beat.step,
        place=beat.place,
        line=None if witness is None else witness.line,
        silent_s=round(hung.silent_s, 3),
        limit_s=round(hung.limit_s, 3),
        limit_reason=hung.limit_reason,
        file=str(file),
    )


def hang_finding(hang: Hang) -> Finding:
    """A group that hangs, as a person should read it."""
    who = "the ranks hang" if hang.rank is None else f"rank {hang.rank} hangs"
    silent, limit = format_seconds(hang.silent_s), format_seconds(hang.limit_s)
    line = f"; {hang.line}" if hang.line else ""
    return Finding(
        slug="rank-hung",
        what=f"{who} in {hang.place}: nothing moved for {silent}",
        why=f"{hang.because}{line}; the limit was {limit} ({hang.limit_reason})",
        fix=f"see where every rank was: `less {hang.file}`; if it was only slow: "
        f"{_key_of(hang)}={max(1, round(10 * hang.limit_s))}",
    )


def _key_of(hang: Hang) -> str:
    reason = hang.limit_reason
    return reason if reason.startswith("hang.") else "hang.after_s"


def write_hang(path: Path, beats: Mapping[int, Beat], witnesses: list[Witness]) -> None:
    """Where every rank was: heartbeat, state, last collectives, stacks."""
    by_rank = {witness.rank: witness for witness in witnesses}
    lines = []
    for rank, beat in sorted(beats.items()):
        witness = by_rank.get(rank)
        lines += [f"rank {rank}: {beat.place}, silent for {beat.silent_s:.1f} s"]
        if witness is None:
            lines += ["  it was not asked", ""]
            continue
        lines += [f"  state of its process: {witness.state}"]
        lines += _collectives(witness.collectives)
        stacks = witness.stacks.strip() or "no stacks: it did not answer"
        lines += ["", *(f"  {line}" for line in stacks.splitlines()), ""]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _collectives(record: Any) -> list[str]:
    if not isinstance(record, dict):
        return ["  no word of its collectives"]
    lines = [
        f"  collectives of group {name}: {status}" for name, status in record["status"].items()
    ]
    for entry in record["last"]:
        shown = [entry.get(key) for key in ("collective_seq_id", "profiling_name", "state")]
        group = (entry.get("process_group") or ["?"])[0]
        lines.append(
            f"  group {group} #{shown[0]} {shown[1]} {entry.get('input_sizes')} {shown[2]}"
        )
    return lines
