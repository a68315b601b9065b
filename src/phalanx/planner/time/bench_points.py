"""What `bench` measures of a job: the plan at one micro-batch, and the key to find it again."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field

from phalanx.job.strategies import facts_of
from phalanx.machine.calibration import Calibration, MeasuredStep
from phalanx.planner.memory.budget import room_for
from phalanx.planner.memory.prediction import predict_parts, with_memory
from phalanx.planner.schema.micro_batches import BatchPlan
from phalanx.planner.schema.plan import Decision, Plan

_STEPS = 1_000_000  # of a feed that is measured and then dropped


@dataclass(frozen=True)
class Measured:
    """A job at one micro-batch."""

    micro_batch: int
    step: MeasuredStep | None
    """None when it could not run."""
    missing: str | None = None
    """Why it could not: `memory` ran out, or too few `samples`."""
    notes: list[str] = field(default_factory=list)
    """What to keep in mind about the figures."""


def job_key(plan: Plan) -> str:
    """What decides how long one rank computes for some micro-batch, as a hash. Learning rate,
    length and data order are no part of it; nor is the number of ranks, so that what one GPU was
    measured to do counts for eight."""
    identity, footprint = plan.history.identity, plan.predicted.footprint
    optimizer = identity.get("optimizer", {})
    facts = {
        "recipe": str(identity.get("recipe")).replace("\\", "/").rpartition("/")[2],
        "recipe_fingerprint": identity.get("recipe_fingerprint"),
        "options": identity.get("options"),
        "parameters": plan.predicted.parameters.value,
        "input_bytes": footprint.input_bytes if footprint is not None else None,
        "optimizer": [
            optimizer.get("name"),
            bool(optimizer.get("momentum")),
            optimizer.get("clip_norm") is not None,
        ],
        "ema": plan.learning.ema.value is not None,
        "device": plan.devices.device.value,
        "precision": plan.numerics.precision.value,
        "determinism": plan.numerics.determinism.value,
        "activation_checkpointing": plan.execution.activation_checkpointing.value,
        # Only where it is on: what was measured before there was such a key counts.
        **(
            {"frozen_precision": "compute"}
            if plan.numerics.frozen_precision.value == "compute"
            and not facts_of(plan.parallel.strategy.value).has_half_weights
            else {}
        ),
        **{
            name: "on"
            for name in ("compile", "channels_last", "cuda_graph")
            if getattr(plan.execution, name).value == "on"
        },
    }
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def measured_steps(calibration: Calibration, plan: Plan) -> list[MeasuredStep]:
    """What was measured of this plan's job: under the same strategy on as many ranks if there is
    that, else under the same strategy, else under any."""
    key = job_key(plan)
    steps = [step for step in calibration.steps if step.job_key == key]
    alike = [step for step in steps if step.strategy == plan.parallel.strategy.value]
    return [step for step in alike if step.ranks == plan.devices.ranks.value] or alike or steps


def plan_at(plan: Plan, micro_batch: int, accumulation: int = 1) -> Plan | None:
    """The plan when every rank runs `accumulation` micro-batches of exactly this size in every
    step; None when the train split has too few samples for one step."""
    whole = micro_batch * accumulation * plan.devices.ranks.value
    steps = plan.batch.num_samples.value // whole
    if steps < 1:
        return None
    reason = "as bench measures it"
    batch = BatchPlan(steps * whole, whole, micro_batch)
    return with_memory(
        plan.replace(
            num_samples=Decision(batch.num_samples, reason),
            global_batch_size=Decision(whole, reason),
            micro_batch_size=Decision(micro_batch, reason),
            accumulation=Decision(accumulation, reason),
            steps_per_epoch=Decision(batch.steps_per_epoch, reason),
            total_steps=Decision(_STEPS, reason),
        )
    )


def choose_micro_batches(plan: Plan) -> list[int]:
    """A quarter of the planned micro-batch, a half, itself and the double, as far as the data and
    the predicted memory go; the planned one is always among them."""
    planned = plan.micro_batches.largest_slot
    wanted = {max(1, planned // 4), max(1, planned // 2), planned, 2 * planned}
    return [m for m in sorted(wanted) if m == planned or _may_fit(plan, m)]


def _may_fit(plan: Plan, micro_batch: int) -> bool:
    at = plan_at(plan, micro_batch)
    if at is None:
        return False
    if plan.numerics.has_batchnorm and micro_batch < 2:
        return False
    if plan.devices.device_bytes is None:
        return True
    return predict_parts(at).total <= room_for(plan.devices.device_bytes, plan.devices.ranks.value)
