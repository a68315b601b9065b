"""The strategies that a plan did not take, and why."""

from __future__ import annotations

from collections.abc import Callable

from phalanx.errors import format_bytes
from phalanx.job.schema import Job
from phalanx.planner.memory.budget import describe_room, room_for
from phalanx.planner.memory.prediction import make_footprint, predict_parts
from phalanx.planner.schema.forecast import Forecast
from phalanx.planner.schema.placement import Placement
from phalanx.planner.schema.plan import Alternative, Decision, Plan
from phalanx.planner.schema.trace import Trace


def other_strategies(
    job: Job,
    trace: Trace,
    plan: Plan,
    placement: Placement,
    predict: Callable[[Plan], Forecast | None],
) -> list[Alternative]:
    """What keeps the state in another way, with the same batch: ddp where fsdp was chosen, and the
    other way round; where the state is in host memory, also what keeps it on the GPUs."""
    ranks, chosen = plan.devices.ranks.value, plan.parallel.strategy.value
    is_offloaded = chosen == "fsdp" and plan.parallel.offload.value is not None
    if plan.numerics.determinism.value == "exact" or chosen not in ("ddp", "fsdp"):
        return []
    if ranks == 1:
        names = ["single"] if is_offloaded else []
    else:
        names = ["fsdp"] if chosen == "ddp" else ["ddp"]
        names += ["fsdp"] if is_offloaded else []
    return [_other(job, trace, plan, placement, predict, name) for name in names]


def _other(
    job: Job,
    trace: Trace,
    plan: Plan,
    placement: Placement,
    predict: Callable[[Plan], Forecast | None],
    name: str,
) -> Alternative:
    shards = 1
    if name == "fsdp":
        is_same = plan.parallel.strategy.value == "fsdp"
        shards = plan.parallel.shard_ranks.value if is_same else placement.node_ranks
    other = plan.replace(
        strategy=Decision(name, ""),
        shard_ranks=Decision(shards, ""),
        offload=Decision(None, ""),
        footprint=make_footprint(
            job, trace, plan.numerics.precision.value, name, placement.cards, shards
        ),
    )
    parts, forecast = predict_parts(other), predict(other)
    rate = forecast.samples_per_s if forecast is not None else None
    is_same = name == plan.parallel.strategy.value
    return Alternative(
        choice="fsdp.offload=false" if is_same else f"strategy={name}",
        samples_per_s=rate,
        memory_bytes=parts.total,
        why_not=_why_not(job, plan, name, parts.total, rate),
    )


def _why_not(job: Job, plan: Plan, name: str, size: int, rate: float | None) -> str:
    if name == plan.parallel.strategy.value and job.fsdp.offload is True:
        return "fsdp.offload = true is asked for"
    if name != plan.parallel.strategy.value and job.strategy != "auto":
        return f"strategy = {job.strategy} is asked for"
    ranks = plan.devices.ranks.value
    if plan.devices.device_bytes is not None and size > room_for(plan.devices.device_bytes, ranks):
        limit = describe_room(plan.devices.device_bytes, ranks)
        return f"{format_bytes(size)}, more than {limit}"
    now = plan.predicted.samples_per_s.value
    if rate is None or now is None:
        return "less simple, and not needed"
    share = 100 * (rate / now - 1)
    if share > 0:
        return f"{share:.1f} % faster, but less simple, and not needed"
    return f"{-share:.0f} % slower, and not needed"
