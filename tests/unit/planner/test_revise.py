"""What a plan becomes after a rank ran out of memory."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.planner.batch import BatchPlan
from phalanx.planner.plan import Decision, Plan
from phalanx.planner.revise import (
    ALLOCATOR_VARIABLE,
    GROWING_SEGMENTS,
    changes_between,
    grow_segments,
    halve_evaluate_batch,
    halve_micro_batch,
    largest_micro_batch,
    state_bytes,
    what_would_fit,
)


@pytest.fixture
def plan(solve):
    return solve("8xa100", micro_batch_size=8)[0]


def shrink(plan, **values):
    return dataclasses.replace(
        plan, **{name: Decision(value, "test") for name, value in values.items()}
    )


def test_the_micro_batch_is_halved_and_nothing_else_of_the_step_changes(plan):
    revised = halve_micro_batch(plan)
    assert revised.revision == plan.revision + 1
    assert changes_between(plan, revised) == {
        "micro_batch_size": {"old": 8, "new": 4},
        "accumulation": {"old": 1, "new": 2},
    }
    assert "halved from 8" in revised.micro_batch_size.reason
    assert revised.accumulation.reason == "64 = 4 micro x 2 accumulation x 8 ranks"
    assert revised.identity == plan.identity


def test_halving_ends_at_one_sample(plan):
    sizes = []
    while plan is not None:
        sizes.append(plan.micro_batch_size.value)
        last, plan = plan, halve_micro_batch(plan)
    assert sizes == [8, 4, 2, 1]
    assert last.shrunk == {"micro_batch_size": 8}, "what was asked for is remembered"


@given(
    samples=st.integers(1, 300),
    total=st.integers(1, 80),
    micro=st.integers(1, 90),
    ranks=st.just(3),
)
def test_the_largest_micro_batch_really_shrinks(samples, total, micro, ranks):
    plan = _bare_plan(samples, total, min(micro, total), ranks)
    revised = halve_micro_batch(plan)
    if revised is None:
        assert largest_micro_batch(plan.batch) == 1
    else:
        assert largest_micro_batch(revised.batch) < largest_micro_batch(plan.batch)
        assert revised.batch.steps_per_epoch == plan.batch.steps_per_epoch
        assert revised.global_batch_size == plan.global_batch_size


def test_a_half_that_leaves_the_largest_as_it_is_is_halved_again():
    plan = _bare_plan(100, 10, 9, 1)  # 5, 5
    assert halve_micro_batch(plan).micro_batch_size.value == 3  # not 5: that gives 5, 5 again


def test_the_last_step_of_an_epoch_may_hold_the_largest():
    assert largest_micro_batch(BatchPlan(19, 10, 9)) == 9  # 5, 5, then 9


def test_the_evaluation_batch_is_halved_on_its_own(plan):
    revised = halve_evaluate_batch(plan)
    assert changes_between(plan, revised) == {"evaluate_batch_size": {"old": 8, "new": 4}}
    assert halve_evaluate_batch(shrink(plan, evaluate_batch_size=1)) is None
    few = shrink(plan, num_test_samples=3, evaluate_batch_size=100)
    assert halve_evaluate_batch(few).evaluate_batch_size.value == 2


def test_the_allocator_is_changed_once_and_only_on_cuda(plan, solve):
    revised = grow_segments(plan, {})
    assert changes_between(plan, revised) == {
        ALLOCATOR_VARIABLE: {"old": None, "new": GROWING_SEGMENTS}
    }
    assert grow_segments(revised, {}) is None
    assert grow_segments(plan, {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}) is None
    assert grow_segments(solve("cpu")[0], {}) is None


def test_a_revised_plan_survives_its_file(plan):
    revised = halve_micro_batch(plan)
    assert Plan.from_json(revised.to_json()) == revised


def test_a_plan_of_an_earlier_version_has_defaults(plan):
    record = plan.to_json()
    del record["shrunk"], record["has_batchnorm"]
    assert (Plan.from_json(record).shrunk, Plan.from_json(record).has_batchnorm) == ({}, False)


def test_resume_keeps_what_was_cut(solve):
    keys = {"micro_batch_size": 8, "evaluate": {"batch_size": 16}}
    first = solve("8xa100", **keys)[0]
    cut = grow_segments(halve_evaluate_batch(halve_micro_batch(first)), {})
    again = solve("8xa100", previous=cut, **keys)[0]
    assert changes_between(cut, again) == {}
    assert again.shrunk == {"micro_batch_size": 8, "evaluate_batch_size": 16}
    other = solve("8xa100", previous=cut, micro_batch_size=8, evaluate={"batch_size": 12})[0]
    assert other.evaluate_batch_size.value == 12, "asked for anew"


def test_resume_on_more_ranks_never_takes_a_larger_micro_batch(solve):
    first = solve("2x4090", micro_batch_size=64)[0]
    cut = halve_micro_batch(first)  # 2 micro-batches of 32
    assert solve("8xa100", micro_batch_size=64, previous=cut)[0].micro_batch_size.value == 32


def test_what_would_help_depends_on_the_plan(solve):
    on_gpu = "; ".join(what_would_fit(solve("8xa100", precision="fp32")[0]))
    assert "precision=bf16" in on_gpu
    assert "not more ranks" in on_gpu
    assert "precision=bf16" not in "; ".join(what_would_fit(solve("8xa100", precision="bf16")[0]))
    assert "GPU" not in "; ".join(what_would_fit(solve("cpu")[0]))


def test_state_is_counted_by_optimizer_and_precision(solve):
    assert state_bytes(solve("cpu", precision="fp32")[0]) == 1000 * 4 * 4
    assert state_bytes(solve("cpu", precision="fp64")[0]) == 1000 * 8 * 4
    assert state_bytes(solve("cpu", optimizer={"name": "sgd"})[0]) == 1000 * 4 * 3


def _bare_plan(samples, total, micro, ranks):
    """Only what the arithmetic looks at."""
    names = [f.name for f in dataclasses.fields(Plan) if f.default is dataclasses.MISSING]
    values = {
        "num_samples": samples,
        "global_batch_size": total,
        "micro_batch_size": micro,
        "ranks": ranks,
    }
    settings = {name: Decision(values.get(name, 0), "test") for name in names}
    return Plan(**{**settings, "shrunk": {}})
