"""Checkpoints as a rank sees them: the newest good one loaded by all, new ones written beside
training.

    training thread     wait for the one before -> copy the state to host memory -> go on
    writer thread       write parts, sync -> all ranks are done -> manifest, sync, one rename ->
                        verify -> `latest`, `best` -> what is not kept goes

What fails is said, and training goes on: the checkpoints before stand. Only the state at the end
must be on disk, otherwise the run has failed.
"""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from phalanx.codec import to_json
from phalanx.engine.checkpoint.cadence import FIRST_S_PER_BYTE, Cadence
from phalanx.engine.checkpoint.findings import in_foreground, not_saved, state_lost, waited
from phalanx.engine.checkpoint.host_copy import HostCopy, HostMemoryError
from phalanx.engine.checkpoint.pretrained import Pretrained
from phalanx.engine.checkpoint.recipe_files import export_beside, is_average_used
from phalanx.engine.checkpoint.tensors import (
    Content,
    collect,
    load_average,
    load_checkpoint,
    write_checkpoint,
)
from phalanx.engine.process.background import Background
from phalanx.engine.process.group import Process
from phalanx.engine.rank.loop import Counters
from phalanx.engine.strategies.base import Strategy
from phalanx.engine.training.ema import WeightAverage, begin_average, ema_findings
from phalanx.errors import Finding
from phalanx.job.schema import Job
from phalanx.planner.schema.plan import Plan
from phalanx.recipe.interface import Recipe
from phalanx.recipe.signing import portable_options
from phalanx.run.attempt import RunTakenError
from phalanx.run.checkpoints import (
    STATE_FILE,
    SavedCheckpoint,
    folder_bytes,
    is_transient,
    latest_good,
    list_checkpoints,
    open_checkpoint,
    publish,
    tidy,
)
from phalanx.run.directory import RunDirectory
from phalanx.run.event_kinds import Checkpoint, FindingMade
from phalanx.run.events import EventWriter

T = TypeVar("T")

_PAUSES_S = (0.2, 1.0, 4.0)
"""Between tries, when an error may pass."""
_TIMEOUT = timedelta(hours=2)
"""How long a rank waits for the others to write their parts: a disk, not a network."""
_LONG_S = 1.0
"""Of waiting for the one before: more is worth a warning. Each is in its event."""
_LAST_PAUSE_S = 1.0
"""Before the state at the end is tried once more, whatever the error."""


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
        self._portable = dict(portable_options(recipe))
        self._said: set[Finding] = set()
        self._is_writer = process.is_first or strategy.facts.is_sharded
        self._writers: Process | None = None
        """How writers of several ranks talk: a group of their own, because the training threads
        use the others meanwhile and no order between the two is kept."""
        if strategy.facts.is_sharded and process.world > 1:
            self._writers = replace(process, control=process.open_group("gloo", timeout=_TIMEOUT))
        self._background = Background()
        is_copied = plan.saving.save_in_background.value == "on" and self._is_writer
        self._copy = HostCopy(process.device, writers=self._writers_here()) if is_copied else None
        self._failed: tuple[Content, set[int], bool] | None = None
        """What is not on disk because writing it failed."""
        self.cadence = Cadence(
            plan.saving.save_share.value,
            every_s=plan.saving.save_every_s.value,
            first_s=FIRST_S_PER_BYTE * self._expected_bytes(),
            is_busy=lambda: self._background.is_busy,
        )
        self.average: WeightAverage | None = None
        """Made by `load`, because it starts from the weights of the first step."""

    def _writers_here(self) -> int:
        """Ranks on this machine that make copies."""
        if not self._strategy.facts.is_sharded:
            return 1
        return int(os.environ.get("LOCAL_WORLD_SIZE", self._process.world))

    def _expected_bytes(self) -> int:
        """Of this rank's part of a checkpoint: what is trained, and two moments of AdamW."""
        trained = [p for p in self._strategy.model.parameters() if p.requires_grad]
        whole = 3 * sum(parameter.numel() * parameter.element_size() for parameter in trained)
        return whole // self._process.world if self._strategy.facts.is_sharded else whole

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

    def is_due(self) -> bool:
        """Whether what is due by the number of steps is saved now, the same on all ranks that have
        a part in it."""
        allowed = self.cadence.allows()
        self._say(self.cadence.findings())
        if self._plan.saving.save_share.value is None or self._writers is None:
            return allowed
        return bool(self._process.agree(int(allowed)))

    def save(self, counters: Counters, is_best: bool) -> None:
        """Keep the state of this moment: it is copied here and written beside training. Every rank
        has a part in it when the strategy is sharded, otherwise the first."""
        if not self._is_writer:
            return
        waited_s = self._wait()
        started = time.perf_counter()
        content = self._collect(counters)
        best_steps = {step for _, step in counters.top}
        if self._copy is not None:
            try:
                content = self._copy.take(content)
            except (HostMemoryError, MemoryError, RuntimeError) as error:
                self._copy = None
                self._say([in_foreground(error)])
        if self._copy is None:
            self._write(content, best_steps, is_best=is_best, started=started, waited_s=waited_s)
            return
        stall_s = time.perf_counter() - started
        self._background.start(
            lambda: self._write(
                content, best_steps, is_best=is_best, stall_s=stall_s, waited_s=waited_s
            )
        )

    def close(self) -> None:
        """Wait for what is being written."""
        self._background.wait()

    def finish(self, step: int) -> list[Finding]:
        """Wait for what is being written; says what is wrong when the state at the end is not on
        disk. Called by every rank."""
        self.close()
        self._events.check()
        if self._failed is not None and self._failed[0].step == step:
            content, best_steps, is_best = self._failed
            time.sleep(_LAST_PAUSE_S)
            self._write(content, best_steps, is_best=is_best)
        if self._failed is None or self._failed[0].step != step:
            return []
        there = [number for number, _ in list_checkpoints(self._run.checkpoints)]
        return [state_lost(self._run, step, there[0] if there else None)]

    def _wait(self) -> float:
        """For the one before: there is one copy, and it is being written."""
        waited_s = self._background.wait() if self._background.is_busy else 0.0
        if waited_s:
            self.cadence.spent(waited_s)
            if waited_s > _LONG_S:
                self._say_once("checkpoint-waited", waited(waited_s))
        return waited_s

    def _collect(self, counters: Counters) -> Content:
        return collect(
            self._strategy,
            {
                **to_json(counters),
                "consumed": self._plan.micro_batches.consumed_after(counters.step),
                "ranks": self._process.world,
                "plan_revision": self._plan.revision,
                "identity": self._plan.history.identity,
                # So that the folder alone is enough to evaluate and export it anywhere.
                "job": self._job.model_dump(mode="json", exclude_unset=True),
                "portable_options": self._portable,
                "plan": self._plan.to_short_json(),
            },
            average=self.average,
            pretrained=self._pretrained,
        )

    def _write(
        self, content: Content, best_steps: set[int], *, is_best: bool, **times: float
    ) -> None:
        """Write, publish and say so; never raises. With `started` training waits for it."""
        with suppress(RunTakenError):  # the training thread finds out when it writes
            self._write_and_publish(content, best_steps, is_best=is_best, **times)

    def _write_and_publish(
        self,
        content: Content,
        best_steps: set[int],
        *,
        is_best: bool,
        stall_s: float = 0.0,
        waited_s: float = 0.0,
        started: float | None = None,
    ) -> None:
        begun = time.perf_counter()
        self._failed = None
        problem: Finding | None = None
        try:
            path = _patiently(lambda: self._write_folder(content))
            if self._copy is not None:
                stall_s = max(stall_s, self._copy.stall_s())
        except RunTakenError:
            raise
        except Exception as error:  # on all ranks that write
            self._failed = content, best_steps, is_best
            self.cadence.spent(stall_s)
            self._say_failure(error, content.step)
            return
        try:
            problem = _patiently(lambda: self._publish(content.step, best_steps, is_best=is_best))
            self._said = {said for said in self._said if said.slug != "checkpoint-not-saved"}
        except Exception as error:  # on the first alone: it is there, only `latest` is not
            self._say_failure(error, content.step)
        now = time.perf_counter()
        if started is not None:
            stall_s = now - started
        self.cadence.saved(stall_s)
        if not self._process.is_first:
            return
        if problem is not None and problem not in self._said:
            self._said.add(problem)
            self._say([problem])
        self._events.write(
            Checkpoint(
                step=content.step,
                path=path.relative_to(self._run.path).as_posix(),
                bytes=folder_bytes(path),
                seconds=round(stall_s, 6),
                waited_s=round(waited_s, 6),
                write_s=round(now - begun, 6),
                is_best=is_best,
            )
        )

    def _say_failure(self, error: Exception, step: int) -> None:
        traceback.print_exception(error)  # into the rank's log
        finding = not_saved(error, step, self._run.checkpoints)
        self._say_once(finding.slug, finding)

    def _write_folder(self, content: Content) -> Path:
        return write_checkpoint(
            self._run.checkpoints,
            content,
            process=self._writers,
            add_files=self._add_files,
            attempt=self._events.identity,
        )

    def _publish(self, step: int, best_steps: set[int], *, is_best: bool) -> Finding | None:
        if not self._process.is_first:
            return None
        return publish(
            self._run.checkpoints,
            step,
            is_best=is_best,
            keep=self._job.checkpoint.keep,
            best_steps=best_steps,
        )

    def _add_files(self, folder: Path) -> None:
        found = export_beside(self._recipe, folder, is_average=is_average_used(self._job))
        self._say([finding for finding in found if finding not in self._said])
        self._said.update(found)  # the next checkpoint's would be the same

    def _find(self) -> SavedCheckpoint | None:
        """The newest good checkpoint, chosen by the first rank for all."""
        saved: SavedCheckpoint | None = None
        if self._process.is_first:
            tidy(self._run.checkpoints)
            saved, problems = latest_good(self._run.checkpoints)
            if saved is None and self._plan.history.resume_from is not None:
                saved, problem = open_checkpoint(Path(self._plan.history.resume_from))
                problems += [problem] if problem else []
            self._say(problems)
        path = self._process.agree_text(str(saved.path) if saved else "")
        if not path or saved is not None:
            return saved
        state = json.loads((Path(path) / STATE_FILE).read_text(encoding="utf-8"))
        return SavedCheckpoint(Path(path), int(state["step"]), state)

    def _say_once(self, slug: str, finding: Finding) -> None:
        if all(said.slug != slug for said in self._said):
            self._said.add(finding)
            self._say([finding])

    def _say(self, findings: list[Finding]) -> None:
        if self._process.is_first:
            for finding in findings:
                self._events.write(FindingMade(finding=finding))


def _patiently(work: Callable[[], T]) -> T:
    """Do it again, from the start, after an error that may pass."""
    for pause in _PAUSES_S:
        try:
            return work()
        except OSError as error:
            if not is_transient(error):
                raise
        time.sleep(pause)
    return work()
