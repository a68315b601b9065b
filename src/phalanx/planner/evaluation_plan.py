"""The plan of an evaluation: made for this machine, with the choices of training that decide about
bits. Pure; `verbs/evaluate.py` runs it."""

from __future__ import annotations

from typing import Any

from phalanx.errors import Finding
from phalanx.job.schema import Devices, Job
from phalanx.machine import Machine
from phalanx.planner.schema.plan import Decision, Plan

# What changes the last bits of a forward, with the job key that asks for it.
_AS_TRAINED = {
    "precision": "precision",
    "frozen_precision": "precision",
    "determinism": "determinism",
    "compile": "compile",
    "channels_last": "channels_last",
    "threads": None,
}


def plan_evaluation(plan: Plan, job: Job, *, trained: Plan | None, trained_job: Job | None) -> Plan:
    """Return the plan whose ranks evaluate a model. Where the device is of the kind that training
    had, they compute as in training; the batch of the test split is training's in any case: its
    sums are what is added up."""
    changes: dict[str, Any] = {
        "cuda_graph": Decision("off", "an evaluation has no steps"),
        "compared_with_eager": Decision(False, "an evaluation has no gradients"),
    }
    if trained is not None and trained_job is not None:
        batch = trained.evaluation.evaluate_batch_size.value
        if job.evaluate.batch_size == trained_job.evaluate.batch_size:
            changes["evaluate_batch_size"] = Decision(batch, "as in training")
        as_trained = trained.decisions()
        for name, key in _AS_TRAINED.items():
            is_asked = key is not None and getattr(job, key) != getattr(trained_job, key)
            if (
                name == "threads"
                and trained.execution.threads.value
                > plan.devices.ranks.value * plan.execution.threads.value
            ):
                continue  # of a machine with more cores
            if trained.devices.device.value == plan.devices.device.value and not is_asked:
                changes[name] = Decision(as_trained[name].value, "as in training")
    return plan.replace(**changes)


def devices_here(job: Job, machine: Machine) -> tuple[Devices, Finding | None]:
    """Where to evaluate what was trained elsewhere: on the devices of the job where this machine
    has them, otherwise on what it has, which a note says."""
    asked = job.devices
    if asked.gpus is None or asked.cpu is not None:
        return asked, None
    there = [gpu.cuda_index for gpu in machine.visible_gpus if gpu.cuda_index is not None]
    is_there = (
        bool(there)
        if asked.gpus == "all"
        else len(there) >= asked.gpus
        if isinstance(asked.gpus, int)
        else set(asked.gpus) <= set(there)
    )
    if is_there:
        return asked, None
    note = Finding(
        slug="evaluate-elsewhere",
        what=f"evaluated on what is here, {len(there)} GPUs: the job asks for {asked.gpus}",
        why="it was trained on another machine; the figures are those of the whole test split on "
        "any number of devices",
        fix="--gpus N or --cpu N chooses",
        severity="note",
    )
    cpu = None if there else 1
    return asked.model_copy(update={"gpus": None, "cpu": cpu, "backend": "auto"}), note
