"""Loader processes by what fetching and computing take; arrays kept on the device when small."""

from dataclasses import replace

import pytest

from phalanx.planner.choices import devices
from phalanx.planner.choices.loading import choose_workers
from phalanx.planner.revise import halve_micro_batch
from phalanx.planner.schema.footprint import Line
from phalanx.planner.schema.plan import Plan
from phalanx.planner.schema.trace import FetchTime

GIB = 2**30
KNOWN = {"activation_bytes": {"bf16": [Line(0, 2**20)]}}


def test_workers_are_shared_out_and_at_most_four(make_job, load_machine):
    machine = load_machine("16x2080")
    for cores, workers in ((72, 4), (48, 3), (15, 0)):
        smaller = replace(machine, cpu=replace(machine.cpu, usable_cores=cores))
        placement = devices.place_ranks(make_job(), smaller)
        assert (
            choose_workers(make_job(), placement, smaller, fetch=FetchTime(0.0, 1.0), micro=8).value
            == workers
        )


def test_quick_data_needs_no_workers(make_job, load_machine):
    machine = load_machine("2x4090")
    placement = devices.place_ranks(make_job(), machine)
    fetch = FetchTime(0.0, 1e-6)
    for micro, workers in ((32, 0), (4096, 4)):
        choice = choose_workers(make_job(), placement, machine, fetch=fetch, micro=micro)
        assert choice.value == workers
    assert "0.03 ms" in choose_workers(make_job(), placement, machine, fetch=fetch, micro=32).reason


@pytest.mark.parametrize(
    ("step_s", "workers", "words"),
    [
        (0.200, 3, "1.5 x 320 ms to fetch a step's samples / 200 ms to compute it = 3"),
        (0.010, 15, "16 CPU cores per rank, less one that trains; wanted:"),
        (9.000, 1, "= 1"),
    ],
)
def test_workers_are_as_many_as_keep_up_with_the_step(
    make_job, load_machine, step_s, workers, words
):
    machine = load_machine("2x4090")
    machine = replace(machine, cpu=replace(machine.cpu, usable_cores=32))
    placement = devices.place_ranks(make_job(), machine)
    choice = choose_workers(
        make_job(), placement, machine, fetch=FetchTime(0.0, 0.005), micro=32, step=(2, step_s)
    )
    assert choice.value == workers
    assert words in choice.reason


def test_small_arrays_are_kept_on_the_device(solve):
    plan, _ = solve("2x4090", trace={**KNOWN, "array_bytes": 2 * GIB})
    without, _ = solve("2x4090", trace=KNOWN)
    assert plan.loading.data_on.value == "device"
    assert "arrays of 2.0 GiB, 25% of what the step leaves free is" in plan.loading.data_on.reason
    assert plan.predicted.memory_bytes.value == without.predicted.memory_bytes.value + 2 * GIB
    assert Plan.from_json(plan.to_json()) == plan
    cut = halve_micro_batch(plan)
    assert cut.loading.data_on.value == "host"
    assert cut.predicted.memory_bytes.value < without.predicted.memory_bytes.value


@pytest.mark.parametrize(
    ("machine", "size", "changes", "words"),
    [
        ("2x4090", 30 * GIB, {}, "arrays of 30.0 GiB, 25% of"),
        ("2x4090", GIB, {"loader": {"workers": 3}}, "3 loader processes fetch them"),
        ("cpu", GIB, {}, "cpu computes from the host's memory"),
        ("2x4090", None, {}, "not arrays in memory"),
    ],
)
def test_other_arrays_stay_on_the_host(solve, machine, size, changes, words):
    plan, _ = solve(machine, trace={**KNOWN, "array_bytes": size}, **changes)
    assert plan.loading.data_on.value == "host"
    assert words in plan.loading.data_on.reason
    assert plan.loading.device_data_bytes == 0
