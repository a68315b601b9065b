"""A rank whose steps are measured: how long they take, where the time goes, their memory."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import asdict, replace
from itertools import pairwise
from statistics import median, quantiles
from typing import Any

import torch

from phalanx.engine.fast.validation import Dropped, take_graph
from phalanx.engine.process.device_memory import context_bytes
from phalanx.engine.process.group import Process
from phalanx.engine.process.telemetry import synchronise
from phalanx.engine.rank.assembly import Assembly
from phalanx.engine.rank.timeline import DATA, STEP, Split, mark, profile_steps
from phalanx.engine.training.ema import begin_average
from phalanx.errors import format_seconds
from phalanx.job.schema import Job
from phalanx.machine.calibration import MeasuredStep
from phalanx.planner.revise import drop_rung
from phalanx.planner.schema.plan import Plan
from phalanx.planner.time.bench_points import job_key
from phalanx.recipe.interface import Data, Recipe

_WARM_UP = 3  # steps: allocator, cuDNN's choice of kernels, optimizer state
_TIMED = (3, 10)  # steps, at least and at most
_TIMED_S = 3.0  # ... as many as this allows
_UNEVEN = 0.3  # of a step, between the quarters of them: more is worth a note
_QUARTILES = 1.35  # standard deviations between the quarters of normal values
_INSPECTED = 3  # steps of the window that is looked into


class MeasuredRank:
    """One rank with one plan, from built to thrown away."""

    def __init__(self, job: Job, plan: Plan, process: Process, recipe: Recipe, data: Data) -> None:
        self._plan = plan
        self._process = process
        self._device = process.device
        self._parts = Assembly(job, plan, process, recipe=recipe, data=data)
        self._notes: list[str] = []
        self._drop(self._parts.dropped)
        self._average = begin_average(job.ema, self._parts.strategy)
        self._parts.strategy.resume()
        with process.resting() if plan.loading.workers.value > 0 else nullcontext():
            self._feed = iter(self._parts.make_feed(0, lambda share: (False, False)))

    def _drop(self, dropped: list[Dropped]) -> None:
        """What is measured is the plan without it."""
        for rung, said in dropped:
            self._notes.append(f"{rung} was dropped: {said.what}")
            self._plan = drop_rung(self._plan, rung, said.what)

    def warm_up(self) -> float:
        """Seconds of the last of some steps."""
        self._run(_WARM_UP - 1)
        last, _ = self._run(1)
        return last[0]

    def measure(self, fetch_s: float) -> tuple[MeasuredStep, list[str]]:
        """Time and memory; all but waiting for samples counts as computing."""
        fewest, most = _TIMED
        affordable = int(min(most, max(fewest, _TIMED_S / max(self.warm_up(), 1e-6))))
        times, waits = self._run(self._process.agree(affordable))
        self._drop(take_graph(self._parts.train_step, self._plan))
        step_s = median(times)
        memory = self._memory()
        notes = list(self._notes)
        low, *_, high = quantiles(times)
        if high - low > _UNEVEN * step_s:
            notes.append(
                f"steps of micro-batch {self._plan.batch.micro_batch_size.value} took "
                f"{format_seconds(min(times))} to {format_seconds(max(times))}: something else "
                "uses this machine, or samples differ"
            )
        wait_s = min(self._exposed_wait(waits), step_s)
        measured = MeasuredStep(
            job_key=job_key(self._plan),
            strategy=self._plan.parallel.strategy.value,
            ranks=self._plan.devices.ranks.value,
            micro_batch=self._plan.batch.micro_batch_size.value,
            accumulation=self._plan.batch.accumulation.value,
            step_s=step_s,
            data_s=wait_s,
            compute_s=step_s - wait_s,
            communication_s=0.0,
            overhead_s=0.0,
            fetch_s=fetch_s,
            jitter=(high - low) / _QUARTILES / step_s,
            **memory,
        )
        return measured, notes

    def split(self, step: MeasuredStep) -> tuple[MeasuredStep, list[str]]:
        """The parts of a step that was timed; they add up to it."""
        found, notes = self._split(step.step_s, step.data_s)
        return replace(step, **asdict(found)), notes

    def _exposed_wait(self, waits: list[float]) -> float:
        """Of one step, where the profiler does not say it: a GPU computes on while the training
        process itself fetches the next samples."""
        is_hidden = self._device.type == "cuda" and self._plan.loading.workers.value == 0
        return 0.0 if is_hidden else median(waits)

    def _run(self, steps: int) -> tuple[list[float], list[float]]:
        """Do steps as a run does them: nothing waits for the device before the end. Returns how
        long each took, and how long each waited for its samples."""
        synchronise(self._device)
        marks, waits = [self._now()], []
        for _ in range(steps):
            started = time.perf_counter()
            step = next(self._feed)
            waits.append(time.perf_counter() - started)
            self._parts.train_step.run(step)
            marks.append(self._now())
        synchronise(self._device)
        if self._device.type == "mps":  # its events cannot be taken while steps run
            whole = time.perf_counter() - marks[0]
            return [whole / steps] * steps, waits
        pairs = pairwise(marks)
        if self._device.type == "cuda":
            return [a.elapsed_time(b) / 1000 for a, b in pairs], waits
        return [b - a for a, b in pairs], waits

    def _now(self) -> Any:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _memory(self) -> dict[str, int | None]:
        """Of the fullest rank, since the first of its parts was built."""
        if self._device.type != "cuda":
            return {}
        reserved = torch.cuda.max_memory_reserved(self._device)
        besides = context_bytes(self._device)
        figures = [
            torch.cuda.max_memory_allocated(self._device),
            reserved,
            -1 if besides is None else reserved + besides,
        ]
        table = self._process.gather(torch.tensor([figures], dtype=torch.int64))
        allocated, reserved, held = table.max(dim=0).values.tolist()
        return {
            "allocated_bytes": allocated,
            "reserved_bytes": reserved,
            "process_bytes": held if int(table[:, 2].min()) >= 0 else None,
        }

    def _split(self, step_s: float, wait_s: float) -> tuple[Split, list[str]]:
        notes: list[str] = []
        seen = None
        if self._device.type == "cuda":
            seen = profile_steps(self._run_marked, _INSPECTED)
            if seen is None:
                notes.append("the profiler saw no kernels: overhead counts as compute")
        exchange_s = seen.communication_s if seen is not None else 0.0
        # Only NCCL exchanges in kernels of the device, which the profiler sees.
        if self._process.world > 1 and not (seen and self._process.backend == "nccl"):
            exchange_s = self._exchange_seconds(step_s, notes)
        if seen is None:
            exchange_s = min(exchange_s, step_s - wait_s)
            return Split(wait_s, step_s - wait_s - exchange_s, exchange_s, 0.0), notes
        compute_s = min(seen.compute_s, step_s)
        exchange_s = min(exchange_s, step_s - compute_s)
        # The profiler slows the host down: what is left of the step as it was without it.
        left_s = step_s - compute_s - exchange_s
        data_s = min(seen.data_s, left_s)
        return Split(data_s, compute_s, exchange_s, left_s - data_s), notes

    def _run_marked(self) -> None:
        for _ in range(_INSPECTED):
            with mark(DATA):
                step = next(self._feed)
            with mark(STEP):
                self._parts.train_step.run(step)

    def _exchange_seconds(self, step_s: float, notes: list[str]) -> float:
        """What the same step takes less when gradients stay on their rank. The ranks drift apart
        by it, so it is the last thing that is measured."""
        strategy = self._parts.strategy
        if not strategy.facts.can_hold_gradients:
            notes.append(f"{strategy.facts.name}: communication cannot be told from compute here")
            return 0.0
        with strategy.hold_gradients():
            self._run(1)
            alone, _ = self._run(_INSPECTED)
        return max(0.0, step_s - median(alone))
