"""Pairs of recorded runs of one job, on one rank and on many, for `verify`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from phalanx.diagnose.difference_cause import explain_crash
from phalanx.diagnose.recording import Recording, read_recording
from phalanx.errors import ExitCode, Finding, UserError
from phalanx.planner.schema.plan import Decision, Plan
from phalanx.planner.verify_plans import Side
from phalanx.prepare.launcher import Launcher
from phalanx.prepare.plan import Prepared
from phalanx.prepare.scratch_run import RunFailedError
from phalanx.run.directory import RunDirectory
from phalanx.run.event_kinds import Outcome
from phalanx.run.purpose import Record
from phalanx.verbs.short_run import run_short


def run_name(ranks: int, name: str) -> str:
    """The folder of a run: `2-ranks`, `1-rank-planned`."""
    return ("1-rank" if ranks == 1 else f"{ranks}-ranks") + (f"-{name}" if name else "")


class RecordedRuns:
    """Pairs of runs, one after the other, until both had the micro-batches they were to have."""

    def __init__(
        self,
        prepared: Prepared,
        launcher: Launcher,
        folder: Path,
        steps: int,
        say: Callable[[str], None],
    ) -> None:
        self._prepared = prepared
        self._launcher = launcher
        self._folder = folder
        self._steps = steps
        self._say = say
        self.findings: list[Finding] = []
        """Said by the ranks, each once."""
        self.sides: tuple[Side, ...] = ()
        """As the last two were in the end."""
        self._made: list[RunDirectory] = []

    def record(self, one: Side, many: Side, name: str = "") -> tuple[Recording, Recording]:
        """Run both. When a rank ran out of memory its plan got a smaller micro-batch, and then the
        other side's is cut in proportion; sizes only shrink, so this ends."""
        self._made = []
        while True:
            recordings = []
            for side in (one, many):
                recording, plan = self._run(side, name)
                recordings.append(recording)
                if plan.micro_batches != side.plan.micro_batches:
                    self._forget()
                    cut = plan.batch.micro_batch_size
                    one, many = (_in_proportion(s, cut, side.micro) for s in (one, many))
                    break
            else:
                self.sides = one, many
                return recordings[0], recordings[1]

    def _run(self, side: Side, suffix: str) -> tuple[Recording, Plan]:
        ranks = side.plan.devices.ranks.value
        name = run_name(ranks, suffix)
        self._say(f"training {self._steps} steps on {run_name(ranks, '').replace('-', ' ')}")
        done = run_short(
            replace(self._prepared, job=side.job, plan=side.plan),
            self._folder,
            name,
            launcher=self._launcher,
            purpose=Record(side.has_dropout),
            is_kept_up=True,
        )
        run = done.directory
        self._made.append(run)
        self.findings += [finding for finding in done.findings if finding not in self.findings]
        self._judge(done.outcome, ranks)
        plan = Plan.from_json(json.loads(run.plan_file.read_text(encoding="utf-8")))
        recording = read_recording(run.recordings, ranks)
        return recording, plan

    def _forget(self) -> None:
        """Make room for runs of the same names."""
        while self._made:
            shutil.rmtree(self._made.pop().path)

    def _judge(self, outcome: Outcome, ranks: int) -> None:
        if outcome.status == "failed":
            cause = explain_crash(outcome.findings) if ranks == 1 else None
            findings = [*outcome.findings, *([cause] if cause else [])]
            raise RunFailedError(findings, exit_code=ExitCode(outcome.exit_code))
        if outcome.step != self._steps:
            raise UserError(
                Finding(
                    slug="verify-stopped",
                    what=f"stopped after {outcome.step or 0} of {self._steps} steps",
                    why=f"{outcome.reason}; nothing was compared",
                    fix="run it again",
                ),
                exit_code=ExitCode.INTERRUPTED,
            )


def _in_proportion(side: Side, cut: Decision[int], before: int) -> Side:
    return side.cut(Decision(max(1, side.micro * cut.value // before), cut.reason))
