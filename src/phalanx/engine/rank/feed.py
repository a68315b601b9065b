"""The feed of one rank: which samples, fetched how, and what the rank wishes before each step."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache, partial
from itertools import chain, tee

from phalanx.engine.checkpoint.cadence import Cadence
from phalanx.engine.data.array_feed import Gathering, is_gathered
from phalanx.engine.data.device_copies import to_device
from phalanx.engine.data.loader import Loader
from phalanx.engine.data.micro_batches import Fetcher, Request, name_samples
from phalanx.engine.data.step_feed import Feed
from phalanx.engine.process.group import Process, StopRequest
from phalanx.engine.process.heartbeat import fetching
from phalanx.job.schema import Job
from phalanx.planner.batch.learning_rate import in_steps
from phalanx.planner.schema.micro_batches import BatchPlan, StepShare
from phalanx.planner.schema.plan import Plan

Wishes = Callable[[StepShare], tuple[bool, bool]]
"""What a rank wants before a step: to stop, to save."""


def make_feed(
    fetcher: Fetcher,
    plan: Plan,
    process: Process,
    *,
    start: int,
    seed: int,
    prefetch: int,
    terms: list[str] | None,
    wishes: Wishes,
    stop_at: int | None = None,
) -> Feed:
    """The steps of a rank from `start` on; loader processes are forked here."""
    batch, total = plan.micro_batches, plan.batch.total_steps.value
    steps = (batch.share_of(step, process.rank, process.world) for step in range(start, total))
    shares, ahead = tee(steps)
    requests = (
        Request(share.epoch, slot, is_training=True) for share in ahead for slot in share.slots
    )
    named = name_samples(requests, seed=seed, size=plan.batch.num_samples.value)
    make = partial(
        Feed,
        shares,
        terms=terms,
        reduce=process.reduce_control if process.world > 1 else None,
        wishes=wishes,
        stop_at=stop_at,
        is_first=process.is_first,
    )
    if is_gathered(fetcher.data) and plan.loading.workers.value == 0:
        gathering = Gathering(
            fetcher.recipe,
            fetcher.data,
            seed=seed,
            device=process.device,
            is_kept_on_device=plan.loading.data_on.value == "device",
            pin=plan.loading.pin_memory.value,
        )
        known = _weights_of_steps(batch, gathering.by_size, terms) if gathering.by_size else None
        return make(fetching(gathering.gather(named)), known_weights=known)
    loader = Loader(
        fetcher,
        chain.from_iterable(named),
        workers=plan.loading.workers.value,
        prefetch=prefetch,
        pin=plan.loading.pin_memory.value,
    )
    return make(fetching(to_device(iter(loader), process.device)))


def _weights_of_steps(
    batch: BatchPlan,
    by_size: Callable[[int], dict[str, float] | None],
    terms: list[str] | None,
) -> Callable[[StepShare], list[float]]:
    """The weights of whole steps: those of all their slots, in their order."""

    @cache
    def weigh(sizes: tuple[int, ...]) -> list[float]:
        known = [by_size(size) or {} for size in sizes]
        return [sum(weights[term] for weights in known) for term in terms or ()]

    def weights(share: StepShare) -> list[float]:
        return weigh(tuple(slot.stop - slot.start for slot in batch.slots_of(share.step)))

    return weights


def stop_step(job: Job, plan: Plan, start: int) -> int | None:
    """The step before which every rank stops, where the job says so in steps or epochs."""
    limit = job.stop_after
    if limit is None or limit.unit == "minutes":
        return None
    return start + in_steps(
        limit,
        total_steps=plan.batch.total_steps.value,
        steps_per_epoch=plan.batch.steps_per_epoch.value,
    )


def make_wishes(
    job: Job,
    plan: Plan,
    asked_to_stop: StopRequest,
    *,
    is_first: bool,
    start: int,
    cadence: Cadence | None = None,
) -> Wishes:
    """When a run's rank wants to stop and to save. Only the first rank has a clock."""
    limit = job.stop_after
    begun = time.monotonic()
    last_step = stop_step(job, plan, start)
    cadence = cadence or Cadence(every_s=plan.saving.save_every_s.value, clock=time.monotonic)
    cadence.begin()

    def wishes(share: StepShare) -> tuple[bool, bool]:
        stop = asked_to_stop.is_set or (last_step is not None and share.step >= last_step)
        if not is_first:
            return stop, False
        now = time.monotonic()
        if limit is not None and limit.unit == "minutes" and now - begun > limit.count * 60:
            stop = True
        return stop, cadence.wants()

    return wishes
