"""A job's real step, measured in this process: its parts add up, out of memory is a result."""

import pytest
import torch

from phalanx.engine.rank.bench import measure_job_here
from phalanx.engine.training.step import TrainStep
from phalanx.job import load_job
from phalanx.planner.solve import solve_plan
from phalanx.planner.time.bench_points import job_key
from tests.ranks.runs import BASE, RECIPE, machine


@pytest.fixture(scope="module")
def planned():
    from phalanx.tracing.trace import trace_recipe

    job = load_job({**BASE, "recipe": RECIPE, "devices": {"cpu": 1}, "ema": {"decay": 0.9}}).job
    trace, findings = trace_recipe(job.recipe, job.options)
    assert trace is not None, findings
    job = job.model_copy(update={"options": trace.options})
    return job, solve_plan(job, machine(), trace)[0]


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_steps_are_measured_from_small_to_large_and_their_parts_add_up(planned):
    job, plan = planned
    small, large, too_large = measure_job_here(job, plan, [8, 4, 51], accumulation=2)
    for measured, size in ((small, 4), (large, 8)):
        step = measured.step
        assert (step.micro_batch, step.accumulation, step.ranks) == (size, 2, 1)
        parts = (step.data_s, step.compute_s, step.communication_s, step.overhead_s)
        assert sum(parts) == pytest.approx(step.step_s)
        assert min(parts) >= 0 and step.data_s > 0 and step.compute_s > 0 and step.fetch_s > 0
        assert step.job_key == job_key(plan)
        assert step.allocated_bytes is None
    assert (too_large.step, too_large.missing) == (None, "samples")


def test_memory_that_runs_out_is_a_result_and_nothing_larger_is_tried(planned, monkeypatch):
    run = TrainStep.run
    tried = []

    def run_out(self, step):
        size = len(step.micro_batches[0].keys)
        tried.append(size)
        if size > 4:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        return run(self, step)

    monkeypatch.setattr(TrainStep, "run", run_out)
    measured = measure_job_here(*planned, [2, 8, 16])
    assert [(m.micro_batch, m.missing) for m in measured] == [(2, None), (8, "memory")]
    assert max(tried) == 8


def test_other_errors_are_not_taken_for_a_result(planned, monkeypatch):
    def fail(self, step):
        raise RuntimeError("no such thing")

    monkeypatch.setattr(TrainStep, "run", fail)
    with pytest.raises(RuntimeError, match="no such thing"):
        measure_job_here(*planned, [2])
