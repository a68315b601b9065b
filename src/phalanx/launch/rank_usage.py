"""Samples of what the ranks of a job on this machine use, as `usage` events: `phalanx watch` shows
them, `phalanx doctor` sees in them which one is idle."""

from __future__ import annotations

import json
from typing import Any

from phalanx.launch.usage import UsageSampler
from phalanx.machine.facts import Machine
from phalanx.planner.plan import Plan
from phalanx.run.directory import RunDirectory
from phalanx.run.events import Event


class RankUsage:
    """Of one attempt. Ranks of other nodes are not sampled."""

    def __init__(self, run: RunDirectory, plan: Plan, *, attempt: int) -> None:
        self._run = run
        self._plan = plan
        self._attempt = attempt
        self._is_wanted = plan.nodes.value == 1
        self._pids: dict[int, int] = {}
        self._step: int | None = None
        self._sampler: UsageSampler | None = None

    def take(self, event: Event) -> None:
        """Hear of ranks that start, and of steps."""
        if not self._is_wanted or event.attempt != self._attempt:
            return
        if event.kind == "step":
            self._step = event.data["step"]
        elif event.kind == "start":
            self._pids[event.data["rank"]] = event.data["pid"]
            if len(self._pids) == self._plan.ranks.value:
                pids = [pid for _, pid in sorted(self._pids.items())]
                self._sampler = UsageSampler(pids, _driver_numbers(self._run, self._plan))

    def look(self) -> list[dict[str, Any]]:
        """One record per rank, when it is time; nothing otherwise."""
        if self._sampler is None:
            return []
        return [{"step": self._step, **sample} for sample in self._sampler.look()]

    def close(self) -> None:
        if self._sampler is not None:
            self._sampler.close()


def _driver_numbers(run: RunDirectory, plan: Plan) -> list[int]:
    """The driver counts all GPUs, CUDA those that are visible."""
    try:
        machine = Machine.from_json(json.loads(run.machine_file.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return plan.gpus.value
    numbers = {gpu.cuda_index: gpu.index for gpu in machine.visible_gpus}
    return [numbers.get(gpu, gpu) for gpu in plan.gpus.value]
