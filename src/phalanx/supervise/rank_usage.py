"""Samples of what ranks use, on the machine where they run."""

from __future__ import annotations

from phalanx.machine.facts import Machine
from phalanx.planner.schema.plan import Plan
from phalanx.run.directory import RunDirectory
from phalanx.run.event_kinds import Usage
from phalanx.supervise.usage import UsageSampler


class RankUsage:
    """Samples of the ranks of one attempt on one machine, once they have started. `gpus` are the
    driver's numbers; `first` is the number of the first of them."""

    def __init__(self, gpus: list[int], *, first: int = 0) -> None:
        self._gpus = gpus
        self._first = first
        self._sampler: UsageSampler | None = None

    def look(self, pids: list[int]) -> list[Usage]:
        """One record per rank, when it is time; nothing otherwise, and while there are none."""
        if self._sampler is None:
            if pids:
                self._sampler = UsageSampler(pids, self._gpus, first=self._first)
            return []
        return self._sampler.look()

    def close(self) -> None:
        if self._sampler is not None:
            self._sampler.close()


def driver_numbers(run: RunDirectory, plan: Plan) -> list[int]:
    """Return the driver's numbers of a plan's GPUs. It counts all GPUs, CUDA those that are
    visible; other nodes see theirs alike."""
    machine = Machine.read(run.machine_file)
    if machine is None:
        return plan.devices.gpus.value
    numbers = {gpu.cuda_index: gpu.index for gpu in machine.visible_gpus}
    return [numbers.get(gpu, gpu) for gpu in plan.devices.gpus.value]
