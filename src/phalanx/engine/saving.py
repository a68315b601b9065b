"""Checkpoints as a rank sees them: the newest good one loaded by all, new ones written by one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from phalanx.engine.checkpoint import load_average, load_checkpoint, save_checkpoint
from phalanx.engine.ema import WeightAverage, begin_average, ema_findings
from phalanx.engine.exporting import export_beside, is_average_used
from phalanx.engine.loop import Counters
from phalanx.engine.pretrained import Pretrained
from phalanx.engine.process import Process
from phalanx.engine.strategies.base import Strategy
from phalanx.errors import Finding
from phalanx.job.schema import Job
from phalanx.planner.plan import Plan
from phalanx.recipe.interface import Recipe
from phalanx.run.checkpoints import (
    STATE_FILE,
    SavedCheckpoint,
    folder_bytes,
    latest_good,
    open_checkpoint,
    publish,
)
from phalanx.run.directory import RunDirectory
from phalanx.run.events import EventWriter


class Saving:
    """Loads and saves the state of one run: weights, their average, optimizer, counters."""

    def __init__(
        self,
        run: RunDirectory,
        job: Job,
        plan: Plan,
        process: Process,
        events: EventWriter,
        strategy: Strategy,
        pretrained: Pretrained,
        recipe: Recipe,
    ) -> None:
        self._run = run
        self._job = job
        self._plan = plan
        self._process = process
        self._events = events
        self._strategy = strategy
        self._pretrained = pretrained
        self._recipe = recipe
        self._said: set[Finding] = set()
        self.average: WeightAverage | None = None
        """Made by `load`, because it starts from the weights of the first step."""

    def load(self) -> SavedCheckpoint | None:
        """Put the newest good checkpoint in place, if there is one, and begin the average."""
        saved = self._find()
        if saved is not None:
            load_checkpoint(saved, self._strategy, self._pretrained)
        self.average = begin_average(self._job.ema, self._strategy)
        if saved is not None:
            record = saved.state.get("ema")
            if self.average is not None and record is not None:
                load_average(saved, self.average)
            self._say(ema_findings(self._job.ema, record, saved.step))
        return saved

    def save(self, counters: Counters, is_best: bool) -> dict[str, Any]:
        """Write a checkpoint; the first rank says what was written. Every rank has a part in it
        when the strategy is sharded."""
        if not (self._process.is_first or self._strategy.is_sharded):
            return {}
        folder = self._run.checkpoints
        path = save_checkpoint(
            folder,
            strategy=self._strategy,
            average=self.average,
            pretrained=self._pretrained,
            add_files=self._add_files,
            state={
                **counters.to_json(),
                "consumed": self._plan.batch.consumed_after(counters.step),
                "ranks": self._process.world,
                "plan_revision": self._plan.revision,
                "identity": self._plan.identity,
            },
        )
        if not self._process.is_first:
            return {}
        problem = publish(folder, counters.step, is_best=is_best, keep=self._job.checkpoint.keep)
        self._say([problem] if problem else [])
        relative = path.relative_to(self._run.path).as_posix()
        return {"step": counters.step, "path": relative, "bytes": folder_bytes(path)}

    def _add_files(self, folder: Path) -> None:
        found = export_beside(self._recipe, folder, is_average=is_average_used(self._job))
        self._say([finding for finding in found if finding not in self._said])
        self._said.update(found)  # the next checkpoint's would be the same

    def _find(self) -> SavedCheckpoint | None:
        """The newest good checkpoint, chosen by the first rank for all."""
        saved: SavedCheckpoint | None = None
        if self._process.is_first:
            saved, problems = latest_good(self._run.checkpoints)
            if saved is None and self._plan.resume_from is not None:
                saved, problem = open_checkpoint(Path(self._plan.resume_from))
                problems += [problem] if problem else []
            self._say(problems)
        path = self._process.agree_text(str(saved.path) if saved else "")
        if not path or saved is not None:
            return saved
        state = json.loads((Path(path) / STATE_FILE).read_text(encoding="utf-8"))
        return SavedCheckpoint(Path(path), int(state["step"]), state)

    def _say(self, findings: list[Finding]) -> None:
        if self._process.is_first:
            for finding in findings:
                self._events.write("finding", finding=finding.to_json())
