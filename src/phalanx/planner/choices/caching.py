"""Whether samples are kept once they are made, in memory or on disk, and how many of them fit."""

from __future__ import annotations

from phalanx.errors import Finding, format_bytes
from phalanx.job.schema import Job
from phalanx.machine import Machine
from phalanx.planner.memory.shares import state_bytes
from phalanx.planner.schema.plan import Decision, Plan
from phalanx.planner.schema.trace import KeptSample, Trace

_SHARE = 0.5  # of the RAM that is free before the ranks start: the rest is theirs, and the system's
_DISK_SHARE = 0.8  # of what is free on the disk: runs and others write there too
_PLACE_BYTES = 8  # where a sample is, kept for each of them


def choose_cache(
    job: Job, machine: Machine, trace: Trace, plan: Plan
) -> tuple[Plan, list[Finding]]:
    """The plan with its cache of samples, one on each machine."""

    def off(reason: str) -> Plan:
        return plan.replace(cache=Decision("off", reason), cache_bytes=0, is_test_cached=False)

    asked = f"loader.cache = {job.loader.cache}"
    if job.loader.cache == "off":
        return off(asked), []
    if trace.array_bytes is not None:
        return off(f"{asked}, ignored: the data is arrays in memory (Tensors)"), []
    if trace.cache_finding is not None:
        finding = trace.cache_finding
        return off(f"{asked}, but {finding.what}"), [finding]
    kept = trace.kept_sample
    if kept is None:
        return off(f"{asked}, but the size of a sample was not measured"), []
    if job.loader.cache == "disk":
        if not kept.has_origin:
            finding = _no_origin(job)
            return off(f"{asked}, but {finding.what}"), [finding]
        return _on_disk(machine, trace, plan, kept), []
    free, about_free = _free_bytes(job, machine, trace, plan)
    limit, samples = int(_SHARE * free), trace.num_samples
    table = _PLACE_BYTES * (samples + trace.num_test_samples)
    room = max(0, limit - table) // kept.num_bytes
    test = trace.kept_test_sample
    test_bytes = trace.num_test_samples * test.num_bytes if test is not None else 0
    total = table + samples * kept.num_bytes
    source = "what load(index) gives" if kept.what == "load" else "whole samples"
    sum_of = f"{source}, {format_bytes(kept.num_bytes)} each x {samples:,} = {format_bytes(total)}"
    if test_bytes:
        sum_of += f", the test split {format_bytes(test_bytes)}"
    sum_of += f"; {_SHARE:.0%} of {about_free} is {format_bytes(limit)}"
    if room == 0:
        return off(f"loader.cache = ram, but not one sample fits: {sum_of}"), []
    is_test_kept = test_bytes > 0 and total + test_bytes <= limit
    if room < samples:
        keeps = f"keeps {room:,} of {samples:,} samples, the others are made each time"
    elif is_test_kept:
        keeps = f"keeps all {samples:,} samples and {trace.num_test_samples:,} of the test split"
    else:
        keeps = f"keeps all {samples:,} samples{', none of the test split' * bool(test_bytes)}"
    reason = f"{keeps}: {sum_of}. Predicted times are those of the first epoch"
    return plan.replace(
        cache=Decision("ram", reason), cache_bytes=limit, is_test_cached=is_test_kept
    ), []


def _on_disk(machine: Machine, trace: Trace, plan: Plan, kept: KeptSample) -> Plan:
    """Files in the user's cache folder; what an earlier run left there is used again."""
    test = trace.kept_test_sample
    test_bytes = trace.num_test_samples * test.num_bytes if test is not None else 0
    train_bytes = trace.num_samples * kept.num_bytes
    each = f"{format_bytes(kept.num_bytes)} each x {trace.num_samples:,}"
    sum_of = f"{each} = {format_bytes(train_bytes)}, the test split {format_bytes(test_bytes)}"
    place = machine.samples
    if place is None:
        reason = f"{sum_of}; the disk of a machine that is not at hand is looked at there"
        limit = train_bytes + test_bytes
        return plan.replace(
            cache=Decision("disk", reason), cache_bytes=limit, is_test_cached=test_bytes > 0
        )
    limit = int(_DISK_SHARE * place.free_bytes)
    sum_of += (
        f"; {_DISK_SHARE:.0%} of {format_bytes(place.free_bytes)} free at {place.path} is "
        f"{format_bytes(limit)}"
    )
    problem = "" if place.writable else f"{place.path} cannot be written"
    if limit < kept.num_bytes:
        problem = problem or "not one more sample fits"
    if problem:
        reason = f"loader.cache = disk, but {problem}: {sum_of}"
        return plan.replace(cache=Decision("off", reason), cache_bytes=0, is_test_cached=False)
    room = limit // kept.num_bytes
    is_test_kept = test_bytes > 0 and train_bytes + test_bytes <= limit
    if room < trace.num_samples:
        keeps = (
            f"room for {room:,} more of {trace.num_samples:,} samples, others are made each time"
        )
    else:
        keeps = f"keeps all {trace.num_samples:,} samples"
        keeps += f" and {trace.num_test_samples:,} of the test split" if is_test_kept else ""
    reason = f"{keeps}, for later runs too: {sum_of}. Predicted times are those of the first epoch"
    return plan.replace(
        cache=Decision("disk", reason), cache_bytes=limit, is_test_cached=is_test_kept
    )


def _no_origin(job: Job) -> Finding:
    return Finding(
        slug="cache-needs-origin",
        what="the data set does not say what its samples come from",
        why=f"loader.cache = disk, recipe = {job.recipe}; what is kept for later runs must be told "
        "from a sample whose file has changed since",
        fix="loader.cache=ram; or let `origin(self, index)` of the data set return path, size and "
        "time of the file that `load(self, index)` reads, as one text",
    )


def _free_bytes(job: Job, machine: Machine, trace: Trace, plan: Plan) -> tuple[int, str]:
    """RAM of a machine that nobody needs, and the words for it."""
    free = machine.memory.available_bytes
    text = f"{format_bytes(free)} free RAM"
    if plan.parallel.offload.value is None:
        return free, text
    copies = max(1, plan.devices.ranks.value // plan.parallel.shard_ranks.value)
    state = copies * state_bytes(job, trace, plan.numerics.precision.value) // machine.nodes
    return max(0, free - state), f"{text} less {format_bytes(state)} of offloaded state"
