"""Whether a job fits into the memory of its GPUs, and if not, the smallest change that would.

What is asked is whether one sample at a time fits: a larger micro-batch is cut when memory runs
out, in the plan or in the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from phalanx.errors import Finding, format_bytes
from phalanx.job.schema import Job
from phalanx.job.strategies import facts_of
from phalanx.machine import Gpu
from phalanx.machine.catalogue import CATALOGUE
from phalanx.planner.memory.budget import PROCESS_SPREAD, describe_interval, process_bytes, room_for
from phalanx.planner.memory.deepspeed import kept_by_zero
from phalanx.planner.memory.prediction import least_bytes, predict_parts, smallest_micro_batch
from phalanx.planner.memory.shares import state_bytes
from phalanx.planner.schema.footprint import Parts
from phalanx.planner.schema.plan import FSDP_OFFLOAD, Decision, Plan
from phalanx.planner.schema.trace import Trace

_SAME = "the same job"
_MOST_GPUS = 1024  # how far to look for a number of GPUs that would do


class _Attempt(NamedTuple):
    """A way to run the job, and what a rank then needs with the smallest micro-batch."""

    change: str
    needed: int
    there: int

    @property
    def fits(self) -> bool:
        return self.needed <= room_for(self.there, ranks=2)  # room is left in what is proposed

    def __str__(self) -> str:
        return f"{self.change}: {format_bytes(self.needed)} of {format_bytes(self.there)}"


@dataclass(frozen=True)
class _Way:
    """How a job would run."""

    job: Job
    precision: str
    is_checkpointed: bool
    strategy: str
    shards: int
    offload: str | None


_Change = tuple[str, Callable[[_Way], _Way]]
"""What to write into the job, and what it does."""


def fit_findings(
    job: Job, trace: Trace, plan: Plan, cards: Sequence[Gpu], host_bytes: int
) -> list[Finding]:
    """Whether the plan fits; errors are jobs that cannot run whatever the micro-batch is.
    `host_bytes` is the host memory that the ranks share, of all their nodes."""
    there = plan.devices.device_bytes
    if there is None:
        return []
    planned, room = predict_parts(plan), room_for(there, plan.devices.ranks.value)
    unknown = [_unknown(job, trace)] if _is_unknown(trace, planned) else []
    if not unknown and plan.execution.compile.value == "on" and planned.activations is None:
        unknown = [_compiled_unknown(trace)]
    if planned.total <= room:
        return unknown
    least = _least(plan, trace)
    if least.total <= room or (least.total < planned.total and least.total <= there):
        return [*unknown, _too_large_a_batch(plan, trace, planned, there)]
    if least.total <= there and planned.activations is None:
        return unknown
    attempts: list[_Attempt] = []
    for attempt in _attempts(job, trace, plan, cards, there, host_bytes):
        attempts.append(attempt)
        if attempt.fits:
            break
    tell = _tight if least.total <= there else _does_not_fit
    return [*unknown, tell(plan, least, there, cards, attempts)]


def _is_unknown(trace: Trace, planned: Parts) -> bool:
    return trace.activations_unknown is not None and planned.activations is None


def _unknown(job: Job, trace: Trace) -> Finding:
    return Finding(
        slug="activations-unknown",
        what="memory is predicted without activations: more is needed than the plan says",
        why="the loss was run on tensors that have shapes and no values: "
        f"{trace.activations_unknown}",
        fix=f"phalanx bench {job.recipe}, which measures steps on this machine's device: plans are "
        "made with them from then on; or mend the recipe where training would fail in the same way",
        severity="warning",
    )


def _compiled_unknown(trace: Trace) -> Finding:
    return Finding(
        slug="compiled-unknown",
        what="memory is predicted without activations: more is needed than the plan says",
        why="compile = on, and what compiled code keeps could not be told: "
        f"{trace.compiled_unknown or 'it was not traced'}",
        fix="compile=off, to see what the model takes without",
        severity="warning",
    )


def _least(plan: Plan, trace: Trace) -> Parts:
    """What a rank needs with the smallest micro-batch, and with checkpointing if that is open."""
    micro = min(smallest_micro_batch(trace), plan.batch.micro_batch_size.value)
    smallest = plan.replace(micro_batch_size=Decision(micro, "the smallest"))
    return predict_parts(
        smallest,
        is_checkpointed=plan.execution.activation_checkpointing.value
        or plan.execution.may_recompute,
    )


def _too_large_a_batch(plan: Plan, trace: Trace, planned: Parts, there: int) -> Finding:
    micro = plan.micro_batches.micro_batch_size
    while micro > smallest_micro_batch(trace):
        micro = max(smallest_micro_batch(trace), micro // 2)
        smaller = plan.replace(micro_batch_size=Decision(micro, "tried"))
        if predict_parts(smaller).total <= room_for(there, plan.devices.ranks.value):
            break
    held, parts = process_bytes(planned.total, plan.devices.ranks.value)
    chosen = plan.batch.micro_batch_size
    return Finding(
        slug="micro-batch-too-large",
        what=f"with micro-batches of {plan.micro_batches.largest_slot} a process may hold "
        f"{describe_interval(held, PROCESS_SPREAD)}, the smallest GPU has {format_bytes(there)}",
        why=f"predicted: {planned}; {parts}; micro_batch_size = {chosen.value} "
        f"({chosen.reason}); a rank that runs out of memory cuts it and goes on",
        fix=f"micro_batch_size={micro}",
        severity="warning",
    )


def _tight(
    plan: Plan, least: Parts, there: int, cards: Sequence[Gpu], attempts: Sequence[_Attempt]
) -> Finding:
    """Nothing smaller is left to choose, and it may be too much."""
    held, parts = process_bytes(least.total, plan.devices.ranks.value)
    why, fix = _way_out(plan, least, attempts)
    return Finding(
        slug="memory-tight",
        what="the job may not fit: with the smallest micro-batch a process may hold "
        f"{describe_interval(held, PROCESS_SPREAD)}, {_card(cards, there)} has "
        f"{format_bytes(there)}",
        why=f"{why}; {parts}",
        fix=fix,
        severity="warning",
    )


def _does_not_fit(
    plan: Plan, least: Parts, there: int, cards: Sequence[Gpu], attempts: Sequence[_Attempt]
) -> Finding:
    why, fix = _way_out(plan, least, attempts)
    return Finding(
        slug="does-not-fit",
        what=f"the job does not fit: with the smallest micro-batch a rank needs "
        f"{format_bytes(least.total)}, {_card(cards, there)} has {format_bytes(there)}",
        why=why,
        fix=fix,
    )


def _card(cards: Sequence[Gpu], there: int) -> str:
    return min(cards, key=lambda card: card.memory_total_bytes or there).name if cards else "a GPU"


def _way_out(plan: Plan, least: Parts, attempts: Sequence[_Attempt]) -> tuple[str, str]:
    """What is needed and was tried, and the first change that fits."""
    fitting = next((attempt for attempt in attempts if attempt.fits), None)  # the last one
    tried = "; ".join(str(attempt) for attempt in attempts if not attempt.fits)
    ranks = plan.devices.ranks.value
    where = f"{ranks} ranks" if ranks > 1 else "one rank"
    how = f"{plan.parallel.strategy.value} on {where} in {plan.numerics.precision.value}"
    fix = "a smaller model or a smaller input, by the recipe's options: nothing tried fits"
    if fitting is not None:
        fix = f"{fitting.change}, which needs {format_bytes(fitting.needed)}"
        fix += f" of {format_bytes(fitting.there)}"
    why = f"predicted for {how}: {least}" + (f"; tried: {tried}" if tried else "")
    return why, fix


def _attempts(
    job: Job, trace: Trace, plan: Plan, cards: Sequence[Gpu], there: int, host_bytes: int
) -> Iterator[_Attempt]:
    """Changes from the smallest to the largest: each alone, then together, then more hardware."""
    way = _Way(
        job,
        plan.numerics.precision.value,
        plan.execution.activation_checkpointing.value or plan.execution.may_recompute,
        plan.parallel.strategy.value,
        plan.parallel.shard_ranks.value,
        plan.parallel.offload.value,
    )

    def attempt(text: str, way: _Way, there: int = there) -> _Attempt:
        return _Attempt(text, _needed(trace, way, cards), there)

    changes = list(_changes(trace, plan, way, cards))
    if state_bytes(job, trace, way.precision) > host_bytes:
        changes = [(text, change) for text, change in changes if "offload" not in text]
    for text, change in changes:
        yield attempt(text, change(way))
    for count in range(2, len(changes) + 1):
        yield attempt(*_all_of(changes[:count], way))
    kept = [(text, change) for text, change in changes if "offload" not in text]
    text, best = _all_of(kept, way)
    facts = facts_of(best.strategy)
    can_spread = facts.is_sharded or facts.is_for_one_rank
    if can_spread:
        yield from _with_more_gpus(attempt, text, best, plan)
    larger = {card.memory_bytes: card for card in reversed(CATALOGUE) if card.kind == "cuda"}
    for size in sorted(size for size in larger if size > there):
        tried = attempt(f"{text or _SAME} on {larger[size].name}", best, size)
        if tried.fits:
            yield tried
            return
    if can_spread and (size := max(larger)) > there:
        on_largest = partial(attempt, there=size)
        yield from _with_more_gpus(on_largest, text, best, plan, f"x {larger[size].name}")


def _all_of(changes: Sequence[_Change], way: _Way) -> tuple[str, _Way]:
    for _, change in changes:
        way = change(way)
    words = [word for text, _ in changes for word in text.split()]
    return " ".join(dict.fromkeys(words)), way


def _changes(trace: Trace, plan: Plan, way: _Way, cards: Sequence[Gpu]) -> Iterator[_Change]:
    """What the job could say instead, the cheapest first."""
    if way.precision in ("fp32", "tf32", "fp64") and "bf16" in trace.activation_bytes:
        is_new = all((card.compute_capability or (0, 0)) >= (8, 0) for card in cards)
        half = "bf16" if is_new else "fp16"
        yield f"precision={half}", lambda way: replace(way, precision=half)
    if not way.is_checkpointed and trace.checkpointed_bytes:
        yield "activation_checkpointing=on", lambda way: replace(way, is_checkpointed=True)
    ranks = plan.devices.ranks.value
    facts = facts_of(way.strategy)
    if facts.has_zero_stages:
        if way.job.deepspeed.stage < 3:
            yield "deepspeed.stage=3", lambda way: _with_deepspeed(way, stage=3)
        yield (
            "deepspeed.stage=3 deepspeed.offload_optimizer=true deepspeed.offload_parameters=true",
            lambda way: _with_deepspeed(
                way, stage=3, offload_optimizer=True, offload_parameters=True
            ),
        )
        return
    if plan.numerics.determinism.value == "exact":
        return
    if not facts.is_sharded and ranks > 1:
        yield "strategy=fsdp", lambda way: replace(way, strategy="fsdp", shards=ranks)
    if not facts.is_sharded or way.offload is None:
        yield "strategy=fsdp fsdp.offload=true", lambda way: _offloaded(way, ranks)


def _with_deepspeed(way: _Way, **changes: bool | int) -> _Way:
    settings = way.job.deepspeed.model_copy(update=changes)
    job = way.job.model_copy(update={"deepspeed": settings})
    return replace(way, job=job, offload=kept_by_zero(job))


def _offloaded(way: _Way, ranks: int) -> _Way:
    shards = way.shards if facts_of(way.strategy).is_sharded else ranks
    return replace(way, strategy="fsdp", shards=shards, offload=FSDP_OFFLOAD)


def _with_more_gpus(
    attempt: Callable[[str, _Way], _Attempt], text: str, way: _Way, plan: Plan, kind: str = "GPUs"
) -> Iterator[_Attempt]:
    """Twice as many until it fits; the last is given if none does."""
    if facts_of(way.strategy).is_for_one_rank:
        text, way = f"{text} strategy=fsdp".strip(), replace(way, strategy="fsdp")
    ranks = plan.devices.ranks.value
    tried = None
    while ranks < _MOST_GPUS and not (tried and tried.fits):
        ranks *= 2
        tried = attempt(f"{text or _SAME} on {ranks} {kind}", replace(way, shards=ranks))
    if tried:
        yield tried


def _needed(trace: Trace, way: _Way, cards: Sequence[Gpu]) -> int:
    return least_bytes(
        way.job,
        trace,
        way.precision,
        way.strategy,
        cards,
        way.shards,
        way.offload,
        is_checkpointed=way.is_checkpointed,
    )
