"""What a plan becomes after a rank ran out of memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.planner.revise import (
    ALLOCATOR_VARIABLE,
    GROWING_SEGMENTS,
    changes_between,
    cost_without,
    drop_rung,
    grow_segments,
    halve_evaluate_batch,
    halve_micro_batch,
    recompute_activations,
    what_would_fit,
    why_not_smaller,
)
from phalanx.planner.schema.footprint import Line
from phalanx.planner.schema.micro_batches import BatchPlan
from phalanx.planner.schema.plan import Alternative, Decision, Plan
from tests.fixtures.plans import plan_with


@pytest.fixture
def plan(solve):
    return solve("8xa100", micro_batch_size=8)[0]


def shrink(plan, **values):
    return plan.replace(**{name: Decision(value, "test") for name, value in values.items()})


def test_the_micro_batch_is_halved_and_nothing_else_of_the_step_changes(plan):
    revised = halve_micro_batch(plan)
    assert revised.revision == plan.revision + 1
    assert changes_between(plan, revised) == {
        "micro_batch_size": {"old": 8, "new": 4},
        "accumulation": {"old": 1, "new": 2},
    }
    assert "cut from 8" in revised.batch.micro_batch_size.reason
    assert revised.batch.accumulation.reason == "64 = 4 micro x 2 accumulation x 8 ranks"
    assert revised.history.identity == plan.history.identity


def test_halving_ends_at_one_sample(plan):
    sizes = []
    while plan is not None:
        sizes.append(plan.batch.micro_batch_size.value)
        last, plan = plan, halve_micro_batch(plan)
    assert sizes == [8, 4, 2, 1]
    assert last.history.shrunk == {"micro_batch_size": 8}, "what was asked for is remembered"


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
        assert plan.micro_batches.largest_slot == 1
    else:
        assert revised.micro_batches.largest_slot < plan.micro_batches.largest_slot
        assert revised.micro_batches.steps_per_epoch == plan.micro_batches.steps_per_epoch
        assert revised.micro_batches.global_batch_size == plan.micro_batches.global_batch_size


def test_a_half_that_leaves_the_largest_as_it_is_is_halved_again():
    plan = _bare_plan(100, 10, 9, 1)  # 5, 5
    assert halve_micro_batch(plan).batch.micro_batch_size.value == 3  # not 5: that gives 5, 5 again


def test_the_last_step_of_an_epoch_may_hold_the_largest():
    assert BatchPlan(19, 10, 9).largest_slot == 9  # 5, 5, then 9


def test_the_evaluation_batch_is_halved_on_its_own(plan):
    revised = halve_evaluate_batch(plan)
    assert changes_between(plan, revised) == {"evaluate_batch_size": {"old": 8, "new": 4}}
    assert halve_evaluate_batch(shrink(plan, evaluate_batch_size=1)) is None
    few = shrink(plan, num_test_samples=3, evaluate_batch_size=100)
    assert halve_evaluate_batch(few).evaluation.evaluate_batch_size.value == 2


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
    del record["history"]["shrunk"], record["numerics"]["has_batchnorm"]
    read = Plan.from_json(record)
    assert (read.history.shrunk, read.numerics.has_batchnorm) == ({}, False)


def test_resume_keeps_what_was_cut(solve):
    keys = {"micro_batch_size": 8, "evaluate": {"batch_size": 16}}
    first = solve("8xa100", **keys)[0]
    cut = grow_segments(halve_evaluate_batch(halve_micro_batch(first)), {})
    again = solve("8xa100", previous=cut, **keys)[0]
    assert changes_between(cut, again) == {}
    assert again.history.shrunk == {"micro_batch_size": 8, "evaluate_batch_size": 16}
    other = solve("8xa100", previous=cut, micro_batch_size=8, evaluate={"batch_size": 12})[0]
    assert other.evaluation.evaluate_batch_size.value == 12, "asked for anew"


def test_resume_on_more_ranks_never_takes_a_larger_micro_batch(solve):
    first = solve("2x4090", micro_batch_size=64)[0]
    cut = halve_micro_batch(first)  # 2 micro-batches of 32
    assert solve("8xa100", micro_batch_size=64, previous=cut)[0].batch.micro_batch_size.value == 32


def test_what_would_help_depends_on_the_plan(solve):
    on_gpu = "; ".join(what_would_fit(solve("8xa100", precision="fp32")[0]))
    assert "precision=bf16" in on_gpu
    assert "blocks(self, model)" in on_gpu
    assert "precision=bf16" not in "; ".join(what_would_fit(solve("8xa100", precision="bf16")[0]))
    assert "GPU with more" not in "; ".join(what_would_fit(solve("cpu")[0]))


def test_what_would_help_has_the_predicted_figures(solve):
    keys = {"precision": "bf16", "micro_batch_size": 4, "activation_checkpointing": "off"}
    plan = solve("8xa100", trace=LARGE, **keys)[0]
    checkpointing, sharding, offload, *rest = what_would_fit(plan)
    assert "activations 3.0 GiB -> 512.0 MiB per micro-batch" in checkpointing
    assert "`activation_checkpointing=on`" in checkpointing
    assert "16.0 GiB -> 2.0 GiB" in sharding
    assert "`strategy=fsdp`" in sharding
    assert "fsdp.offload=true" in offload
    assert rest
    keys["activation_checkpointing"] = "on"
    assert "sharding" in what_would_fit(solve("8xa100", trace=LARGE, **keys)[0])[0]


GIB = 2**30
LARGE = {
    "parameters": GIB,
    "trainable_parameters": GIB,
    "parameter_bytes": 4 * GIB,
    "trainable_bytes": 4 * GIB,
    "num_blocks": 12,
    "activation_bytes": {"bf16": [Line(GIB, GIB // 2)]},
    "checkpointed_bytes": {"bf16": [Line(0, GIB // 8)]},
}


CUBLAS = 2 * (8 * 2**20 + 128 * 2**10)


def test_checkpointing_is_turned_on_where_the_job_leaves_it_open(solve):
    more = CUBLAS + 4  # and AdamW's count of steps
    plan = solve("8xa100", trace=LARGE, micro_batch_size=4)[0]
    assert plan.execution.activation_checkpointing.value is False
    revised = recompute_activations(plan)
    assert changes_between(plan, revised) == {
        "activation_checkpointing": {"old": False, "new": True},
        "memory_bytes": {"old": 19 * GIB + more, "new": 16 * GIB + GIB // 2 + more},
    }
    assert Plan.from_json(revised.to_json()) == revised
    assert revised.predicted.forecast is None and revised.predicted.step_s.value is None, (
        "of another plan"
    )
    assert recompute_activations(revised) is None
    again = solve("8xa100", trace=LARGE, micro_batch_size=4, previous=revised)[0]
    assert again.execution.activation_checkpointing.value is True, "resume keeps it"
    for keys in ({"activation_checkpointing": "off"}, {"trace": {"num_blocks": 0}}):
        assert recompute_activations(solve("8xa100", **{"trace": LARGE, **keys})[0]) is None


@pytest.mark.parametrize(
    ("total", "micro", "sizes"),
    [
        (64, 8, [8, 4, 2]),
        (15, 8, [8, 4, 3]),  # 2 would give 1 and seven of 2, 3 gives five of 3
        (64, 1, [1]),  # the job's own
        (5, 2, [2, 1]),  # the job has micro-batches of 1 and 2 already
    ],
)
def test_batchnorm_keeps_two_samples(solve, total, micro, sizes):
    trace = {"has_batchnorm": True, "num_samples": 20 * total}
    plan = solve("1xt4", global_batch_size=total, micro_batch_size=micro, trace=trace)[0]
    found = []
    while plan is not None:
        found.append(plan.batch.micro_batch_size.value)
        last, plan = plan, halve_micro_batch(plan)
    assert found == sizes
    assert ("BatchNorm" in why_not_smaller(last)) is (sizes[-1] > 1)


def _bare_plan(samples, total, micro, ranks):
    """Only what the arithmetic looks at."""
    return plan_with(
        num_samples=samples, global_batch_size=total, micro_batch_size=micro, ranks=ranks
    )


def test_what_was_dropped_is_off_and_the_rest_is_predicted_for_that():
    slower = Alternative(
        choice="compile=off", samples_per_s=100.0, memory_bytes=7, why_not="75 % slower"
    )
    plan = plan_with(compile="on", samples_per_s=400.0, global_batch_size=50, alternatives=[slower])
    assert cost_without(plan, "compile").startswith("100 samples/s are predicted without it")
    dropped = drop_rung(plan, "compile", "it differs")
    assert dropped.revision == plan.revision + 1
    assert dropped.execution.compile == Decision("off", "dropped: it differs")
    assert dropped.predicted.step_s.value == 0.5
    assert dropped.predicted.memory_bytes.value == 7
    assert drop_rung(plan, "cuda_graph", "it differs").execution.cuda_graph.value == "off"
