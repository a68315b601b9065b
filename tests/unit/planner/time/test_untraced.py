"""A model that cannot be traced is planned from what `bench` measured of it."""

from dataclasses import replace

import pytest

from phalanx.machine.calibration import Calibration, MeasuredStep
from phalanx.planner.solve import solve_plan
from phalanx.planner.time.bench_points import job_key
from phalanx.planner.time.untraced import probe_seconds

GIB = 2**30
UNKNOWN = {
    "activations_unknown": "DataDependentOutputException: aten._local_scalar_dense",
    "input_bytes": 1000,
    "fetch_s": 1e-7,
}


def step(micro, seconds, **changes):
    known = {"job_key": "k", "accumulation": 1, "fetch_s": 1e-6, "data_s": 0.0, "overhead_s": 0.0}
    known |= {"compute_s": seconds, "communication_s": 0.0}
    return MeasuredStep(micro_batch=micro, step_s=seconds, **(known | changes))


@pytest.fixture
def plan_of(make_job, make_trace, load_machine):
    """The plan of an untraced job on one RTX 4090 of two, with measured steps or without."""

    def plan_of(steps, *, ranks=1, **keys):
        job, trace = make_job(**{"global_batch_size": 32} | keys), make_trace(**UNKNOWN)
        machine = load_machine("2x4090")
        machine = replace(machine, gpus=machine.gpus[:ranks])
        unmeasured, findings = solve_plan(job, machine, trace)
        calibration = Calibration(
            device=machine.gpus[0].name,
            measured_at="2026-01-01",
            torch_version="2.13",
            steps=tuple(replace(s, job_key=job_key(unmeasured)) for s in steps),
        )
        return (
            solve_plan(job, machine, trace, calibration=calibration)
            if steps
            else (
                unmeasured,
                findings,
            )
        )

    return plan_of


STEPS = [
    step(8, 0.01, allocated_bytes=3 * GIB),
    step(16, 0.018, allocated_bytes=5 * GIB),
    step(32, 0.034, allocated_bytes=9 * GIB),
]


def test_a_job_that_was_measured_nowhere_is_not_predicted_and_says_what_to_do(plan_of):
    plan, (finding,) = plan_of([])
    assert plan.predicted.forecast is None and plan.predicted.step_s.value is None
    assert finding.slug == "activations-unknown"
    assert finding.fix.startswith("phalanx bench digits")


def test_time_and_memory_are_those_that_were_measured(plan_of):
    plan, findings = plan_of(STEPS, micro_batch_size=16)
    assert [f.slug for f in findings] == []
    measured, _ = plan_of(STEPS, global_batch_size=16, micro_batch_size=16)
    assert measured.predicted.memory_bytes.value == 5 * GIB
    assert (
        plan.predicted.memory_bytes.value > measured.predicted.memory_bytes.value
    )  # gradients stay, more samples
    assert (
        "bench measured them with micro-batches of 8, 16, 32" in plan.predicted.memory_bytes.reason
    )
    assert plan.predicted.forecast.compute_s == pytest.approx(2 * 0.018)  # two of 16
    assert "steps of this job, bench of 2026-01-01" in plan.predicted.step_s.reason


def test_the_fastest_that_fits_is_chosen_and_more_ranks_are_faster(plan_of):
    one, _ = plan_of(STEPS)
    assert one.batch.micro_batch_size.value == 32
    slow = [*STEPS[:2], step(32, 0.08, allocated_bytes=9 * GIB)]
    assert plan_of(slow)[0].batch.micro_batch_size.value == 16
    large = [*STEPS[:2], step(32, 0.034, allocated_bytes=22 * GIB)]
    assert plan_of(large)[0].batch.micro_batch_size.value == 16
    two, _ = plan_of(STEPS, ranks=2)
    assert 1 < two.predicted.speedup.value < 2
    # Gradients wait for all of backward there: never less than on one rank with that micro-batch.
    assert (
        two.predicted.memory_bytes.value
        >= plan_of(STEPS, global_batch_size=16)[0].predicted.memory_bytes.value
    )


def test_lines_through_measured_sizes():
    assert probe_seconds([], 8) is None
    for micro, expected in ((8, 0.01), (12, 0.014), (64, 0.066)):
        assert probe_seconds(STEPS, micro)[0] == pytest.approx(expected)
    assert probe_seconds(STEPS, 1)[0] >= 0.005
    among, beyond = probe_seconds(STEPS, 12)[1], probe_seconds(STEPS, 64)[1]
    alone = probe_seconds(STEPS[:1], 64)
    assert among < beyond < alone[1]
    assert alone[0] == pytest.approx(0.08) and probe_seconds(STEPS[:1], 1)[0] == 0.01
    twice = [step(8, 0.02, accumulation=2, data_s=0.002)]
    assert probe_seconds(twice, 8)[0] == pytest.approx(0.009)
