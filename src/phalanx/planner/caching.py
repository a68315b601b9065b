"""Whether samples are kept in memory once they are made, and how many of them fit."""

from __future__ import annotations

from dataclasses import replace

from phalanx.errors import Finding, format_bytes
from phalanx.job.schema import Job
from phalanx.machine import Machine
from phalanx.planner.plan import Decision, Plan
from phalanx.planner.shares import state_bytes
from phalanx.planner.trace import Trace

_SHARE = 0.5  # of the RAM that is free before the ranks start: the rest is theirs, and the system's
_PLACE_BYTES = 8  # where a sample is, kept for each of them


def choose_cache(
    job: Job, machine: Machine, trace: Trace, plan: Plan
) -> tuple[Plan, list[Finding]]:
    """The plan with its cache of samples, one on each machine."""

    def off(reason: str) -> Plan:
        return replace(plan, cache=Decision("off", reason), cache_bytes=0, is_test_cached=False)

    if job.loader.cache == "off":
        return off("loader.cache = off"), []
    if trace.array_bytes is not None:
        return off("loader.cache = ram, ignored: the data is arrays in memory (Tensors)"), []
    if trace.cache_finding is not None:
        finding = Finding.from_json(trace.cache_finding)
        return off(f"loader.cache = ram, but {finding.what}"), [finding]
    kept = trace.kept_sample
    if kept is None:
        return off("loader.cache = ram, but the size of a sample was not measured"), []
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
    return replace(
        plan, cache=Decision("ram", reason), cache_bytes=limit, is_test_cached=is_test_kept
    ), []


def _free_bytes(job: Job, machine: Machine, trace: Trace, plan: Plan) -> tuple[int, str]:
    """RAM of a machine that nobody needs, and the words for it."""
    free = machine.memory.available_bytes
    text = f"{format_bytes(free)} free RAM"
    if plan.offload.value is None:
        return free, text
    copies = max(1, plan.ranks.value // plan.shard_ranks.value)
    state = copies * state_bytes(job, trace, plan.precision.value) // machine.nodes
    return max(0, free - state), f"{text} less {format_bytes(state)} of offloaded state"
