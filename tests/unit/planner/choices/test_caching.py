"""Samples kept in memory: as many as fit into a share of what is free, with both numbers."""

from dataclasses import replace

import pytest

from phalanx.codec import from_json, to_json
from phalanx.errors import Finding
from phalanx.machine.facts import Storage
from phalanx.planner.schema.plan import Plan
from phalanx.planner.schema.trace import KeptSample, Trace
from phalanx.planner.solve import solve_plan

GIB = 2**30
RAM = {"loader": {"cache": "ram"}}


@pytest.mark.parametrize(
    ("free", "value", "words"),
    [
        (8 * GIB, "ram", "keeps all 1,437 samples and 360 of the test split: whole samples, "),
        (
            3 * GIB,
            "ram",
            "1.0 MiB each x 1,437 = 1.4 GiB, the test split 360.0 MiB; 50% of 3.0 GiB",
        ),
        (GIB, "ram", "keeps 511 of 1,437 samples, the others are made each time: "),
        (2**20, "off", "not one sample fits"),
    ],
)
def test_as_many_as_fit_into_half_of_the_free_ram(
    make_job, make_trace, load_machine, free, value, words
):
    machine = load_machine("2x4090")
    machine = replace(machine, memory=replace(machine.memory, available_bytes=free))
    kept = KeptSample("sample", 2**20)
    trace = make_trace(kept_sample=kept, kept_test_sample=kept)
    plan, findings = solve_plan(make_job(**RAM), machine, trace)
    assert plan.loading.cache.value == value
    assert words in plan.loading.cache.reason
    assert plan.loading.cache_bytes == (free // 2 if value == "ram" else 0)
    assert plan.loading.is_test_cached == (free == 8 * GIB)
    assert not [f for f in findings if f.slug.startswith("cache")]
    assert Plan.from_json(plan.to_json()) == plan


def test_what_cannot_be_kept_is_an_error_only_where_it_is_asked_for(solve):
    finding = Finding(slug="cache-type", what="a picture", why="so", fix="this")
    for keys, expected in ((RAM, [finding]), ({}, [])):
        plan, findings = solve("2x4090", trace={"cache_finding": finding}, **keys)
        assert [f for f in findings if f.slug == "cache-type"] == expected
        assert plan.loading.cache.value == "off"


def test_arrays_in_memory_need_none(solve):
    plan, _ = solve("2x4090", trace={"array_bytes": 1000}, **RAM)
    assert plan.loading.cache.value == "off"
    assert "Tensors" in plan.loading.cache.reason


def test_the_trace_keeps_what_it_found(make_trace):
    trace = make_trace(kept_sample=KeptSample("load", 5))
    assert from_json(Trace, to_json(trace)).kept_sample == KeptSample("load", 5)


DISK = {"loader": {"cache": "disk"}}


@pytest.mark.parametrize(
    ("free", "value", "words"),
    [
        (8 * GIB, "disk", "keeps all 1,437 samples and 360 of the test split, for later runs too"),
        (2 * GIB, "disk", "keeps all 1,437 samples, for later runs too: 1.0 MiB each x 1,437"),
        (GIB, "disk", "room for 819 more of 1,437 samples, others are made each time"),
        (2**20, "off", "not one more sample fits: 1.0 MiB each"),
    ],
)
def test_as_many_as_fit_on_the_disk(make_job, make_trace, load_machine, free, value, words):
    place = Storage(path="/home/me/.cache", total_bytes=99 * GIB, free_bytes=free, writable=True)
    machine = replace(load_machine("2x4090"), samples=place)
    kept = KeptSample("load", 2**20, has_origin=True)
    trace = make_trace(kept_sample=kept, kept_test_sample=kept)
    plan, findings = solve_plan(make_job(**DISK), machine, trace)
    assert plan.loading.cache.value == value
    assert words in plan.loading.cache.reason
    assert "free at /home/me/.cache" in plan.loading.cache.reason
    assert plan.loading.cache_bytes == (int(0.8 * free) if value == "disk" else 0)
    assert plan.loading.is_test_cached == (free == 8 * GIB)
    assert not [f for f in findings if f.slug.startswith("cache")]
    locked = replace(machine, samples=replace(place, writable=False))
    plan, _ = solve_plan(make_job(**DISK), locked, trace)
    assert plan.loading.cache.value == "off" and "cannot be written" in plan.loading.cache.reason


def test_what_does_not_say_where_it_comes_from_is_not_kept_for_later(solve):
    plan, findings = solve("2x4090", trace={"kept_sample": KeptSample("load", 5)}, **DISK)
    (finding,) = [f for f in findings if f.slug == "cache-needs-origin"]
    assert finding.severity == "error" and "origin(self, index)" in finding.fix
    assert plan.loading.cache.value == "off"


def test_the_disk_of_another_machine_is_looked_at_there(solve):
    kept = KeptSample("load", 2**20, has_origin=True)
    plan, _ = solve("2x4090", trace={"kept_sample": kept}, **DISK)
    assert plan.loading.cache.value == "disk" and "is looked at there" in plan.loading.cache.reason
