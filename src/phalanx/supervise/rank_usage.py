"""Samples of what the ranks of a job use, on the machine where they run."""

from __future__ import annotations

from typing import Any

from phalanx.machine.facts import Machine
from phalanx.planner.schema.plan import Plan
from phalanx.run.directory import RunDirectory
from phalanx.supervise.usage import UsageSampler


class RankUsage:
    """Of the ranks of one attempt on one machine; `first` is the number of the first of them."""

    def __init__(self, run: RunDirectory, plan: Plan, *, first: int = 0) -> None:
        self._run = run
        self._plan = plan
        self._first = first
        self._sampler: UsageSampler | None = None

    def look(self, pids: list[int]) -> list[dict[str, Any]]:
        """One record per rank, when it is time; nothing otherwise, and while there are none."""
        if self._sampler is None:
            if pids:
                gpus = _driver_numbers(self._run, self._plan)
                self._sampler = UsageSampler(pids, gpus, first=self._first)
            return []
        return self._sampler.look()

    def close(self) -> None:
        if self._sampler is not None:
            self._sampler.close()


def _driver_numbers(run: RunDirectory, plan: Plan) -> list[int]:
    """The driver counts all GPUs, CUDA those that are visible; other nodes see theirs alike."""
    machine = Machine.read(run.machine_file)
    if machine is None:
        return plan.devices.gpus.value
    numbers = {gpu.cuda_index: gpu.index for gpu in machine.visible_gpus}
    return [numbers.get(gpu, gpu) for gpu in plan.devices.gpus.value]
