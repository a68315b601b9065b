"""Two plans that can be compared number by number: the same job on one rank and on many, in the
same arithmetic, with the same micro-batches or with those that `train` would choose. Pure;
`verbs/verify.py` runs them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from phalanx.errors import Finding
from phalanx.job.schema import Devices, Job
from phalanx.machine import Machine
from phalanx.machine.calibration import Calibration
from phalanx.planner.batch.size import micro_batches_per_rank
from phalanx.planner.schema.micro_batches import BatchPlan
from phalanx.planner.schema.plan import Decision, Plan
from phalanx.planner.schema.trace import Trace
from phalanx.planner.solve import solve_plan

_SLOTS_PER_RANK = 2  # with one each, what a rank carries from slot to slot would not show

# Normalised over two samples, everything is +1 or -1: what is left of a gradient is rounding error.
_BATCHNORM_SAMPLES = 4


@dataclass(frozen=True)
class Side:
    """One of the two runs."""

    job: Job
    plan: Plan
    has_dropout: bool = True
    """False: dropout is disabled, whose masks follow the micro-batches."""

    @property
    def micro(self) -> int:
        return self.plan.batch.micro_batch_size.value

    @property
    def is_even(self) -> bool:
        """Whether all micro-batches of a step are of one size, in every step of an epoch."""
        batch = self.plan.micro_batches
        steps = (batch.slots_of(step) for step in (0, batch.steps_per_epoch - 1))
        return all(len({slot.stop - slot.start for slot in slots}) == 1 for slots in steps)

    def cut(self, micro: Decision[int]) -> Side:
        """The same with another micro-batch."""
        total, ranks = self.plan.batch.global_batch_size.value, self.plan.devices.ranks.value
        accumulation = micro_batches_per_rank(total, micro.value, ranks)
        plan = self.plan.replace(micro_batch_size=micro, accumulation=accumulation)
        job = self.job.model_copy(update={"micro_batch_size": micro.value})
        return replace(self, job=job, plan=plan)


def devices_for(job: Job, machine: Machine, ranks: int) -> tuple[Devices, Finding | None]:
    """Where so many ranks can be: on GPUs of the job, else on CPU processes, which a note says."""
    asked = job.devices
    if asked.cpu is not None:
        return asked.model_copy(update={"cpu": ranks}), None
    gpus = [gpu.cuda_index for gpu in machine.visible_gpus if gpu.cuda_index is not None]
    if isinstance(asked.gpus, list):
        gpus = [index for index in asked.gpus if index in gpus]
    elif isinstance(asked.gpus, int):
        gpus = gpus[: asked.gpus]
    if machine.accelerator == "cuda" and len(gpus) >= ranks:
        return asked.model_copy(update={"gpus": gpus[:ranks]}), None
    backend = "auto" if asked.backend == "nccl" else asked.backend
    note = Finding(
        slug="verify-on-cpu",
        what=f"the {ranks} ranks are CPU processes",
        why=f"--ranks {ranks}, and the job can have {len(gpus)} GPUs here; samples, batches, "
        "losses and gradients are the same wherever they are computed",
        fix="nothing to do",
        severity="note",
    )
    return asked.model_copy(update={"gpus": None, "cpu": ranks, "backend": backend}), note


def one_of(devices: Devices) -> Devices:
    """The first of these devices alone."""
    if isinstance(devices.gpus, list):
        return Devices(gpus=devices.gpus[:1])
    return Devices(cpu=1)


def comparable_sides(
    job: Job, machine: Machine, trace: Trace, plan: Plan, *, steps: int
) -> tuple[Side, Side, list[Finding]]:
    """The job on one rank and on the ranks of `plan`, and what there is to say about the latter."""
    micro = common_micro_batch(
        plan.micro_batches, plan.devices.ranks.value, steps, trace.has_batchnorm
    )
    notes = [_unsynced()] if plan.numerics.sync_batchnorm.value else []
    job = job.model_copy(update={"sync_batchnorm": False})
    one, _ = _side(job, machine, trace, plan, micro, is_one=True)
    many, findings = _side(job, machine, trace, plan, micro, is_one=False)
    return one, many, [*findings, *notes]


def planned_sides(
    job: Job,
    machine: Machine,
    trace: Trace,
    plan: Plan,
    *,
    precision: str,
    calibration: Calibration | None = None,
) -> tuple[Side, Side] | None:
    """The job on one rank and on the ranks of `plan`, with micro-batches and BatchNorm as `train`
    plans them for a `precision`. None where both see the same micro-batches anyway."""
    total = plan.batch.global_batch_size.value
    own = job.model_copy(update={"precision": precision})
    alone = own.model_copy(
        update={
            **_alone(job),
            "global_batch_size": total,
            "batch_per_gpu": None,
            "micro_batch_size": job.micro_batch_size or job.batch_per_gpu,
            "gradient_accumulation": None if job.batch_per_gpu else job.gradient_accumulation,
        }
    )
    first, second = (
        solve_plan(asked, machine, trace, calibration=calibration)[0] for asked in (alone, own)
    )
    is_alike = first.micro_batches.slots_of(0) == second.micro_batches.slots_of(0)
    if is_alike and not second.numerics.sync_batchnorm.value:
        return None
    sides = [
        _side(job, machine, trace, plan, solved.batch.micro_batch_size, is_one=solved is first)[0]
        for solved in (first, second)
    ]
    one, many = (replace(side, has_dropout=is_alike) for side in sides)
    return one, many


def _alone(job: Job) -> dict[str, Any]:
    return {"devices": one_of(job.devices), "strategy": "single"}


def _side(
    job: Job, machine: Machine, trace: Trace, plan: Plan, micro: Decision[int], *, is_one: bool
) -> tuple[Side, list[Finding]]:
    fixed = {
        "global_batch_size": plan.batch.global_batch_size.value,
        "batch_per_gpu": None,
        "gradient_accumulation": None,
        "micro_batch_size": micro.value,
        # As the recipe is written.
        "fast": "off",
        "compile": "off",
        "channels_last": "off",
        "cuda_graph": "off",
        **(_alone(job) if is_one else {}),
    }
    job = job.model_copy(update=fixed)
    solved, findings = solve_plan(job, machine, trace)
    return Side(job, _recorded(solved, plan, micro)), findings


def _unsynced() -> Finding:
    return Finding(
        slug="verify-unsynced",
        what="in the same micro-batches, BatchNorm is compared without `sync_batchnorm`",
        why="sync_batchnorm = true takes statistics over all ranks: one rank would see others; in "
        "the micro-batches of the plan it is compared with it",
        fix="nothing to do",
        severity="note",
    )


def _recorded(solved: Plan, plan: Plan, micro: Decision[int]) -> Plan:
    """A plan to be recorded: what must be equal on both sides is that of the many ranks."""
    return solved.replace(
        lr=plan.learning.lr,
        warmup_steps=plan.learning.warmup_steps,
        micro_batch_size=micro,
        threads=Decision(
            plan.execution.threads.value, "the same on both sides: it changes the last bits"
        ),
        workers=Decision(
            plan.loading.workers.value, "the same on both sides: they compute samples"
        ),
        num_test_samples=Decision(0, "nothing is evaluated"),
        evaluate_every=Decision(None, "nothing is evaluated"),
    )


def common_micro_batch(
    batch: BatchPlan, ranks: int, steps: int, has_batchnorm: bool
) -> Decision[int]:
    """A micro-batch that gives every rank at least two, or one where BatchNorm would have too few
    samples otherwise."""
    total = min(batch.global_batch_size, batch.num_samples)
    own = batch.micro_batch_size
    sizes = [min(own, ceil(total / (slots * ranks))) for slots in (_SLOTS_PER_RANK, 1)]
    value = sizes[0]
    if has_batchnorm:
        smallest = {size: _smallest(batch, size, steps) for size in (*sizes, own)}
        # The first that has enough, else the one that has most.
        value = max(smallest, key=lambda size: min(smallest[size], _BATCHNORM_SAMPLES))
    slots = len(replace(batch, micro_batch_size=value).slots_of(0))
    if value == own:
        return Decision(value, f"that of the job: {slots} micro-batches for {ranks} ranks")
    return Decision(
        value, f"{own} cut so that {ranks} ranks have {slots} micro-batches, the same on both sides"
    )


def _smallest(batch: BatchPlan, micro: int, steps: int) -> int:
    cut = replace(batch, micro_batch_size=micro)
    return min(slot.stop - slot.start for step in range(steps) for slot in cut.slots_of(step))
