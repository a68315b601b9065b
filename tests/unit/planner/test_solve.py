"""(Job, Machine, Trace) -> Plan: the numbers of the guides, and a reason beside each."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.job import load_job
from phalanx.planner.batch.size import choose_batch, expected_speedup
from phalanx.planner.scaling import scaling_table
from phalanx.planner.schema.micro_batches import BatchPlan

MACHINES = ["cpu", "1xt4", "2x4090", "8xa100", "16x2080", "mps"]


def slugs(findings):
    return [f.slug for f in findings]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"batch_per_gpu": 4, "gradient_accumulation": 2},
        {"steps": 30, "evaluate": {"every": None}, "checkpoint": {"every": None}},
        {"checkpoint": {"every": "10 minutes"}, "evaluate": {"every": "5 steps", "batch_size": 9}},
        {"strategy": "auto", "precision": "fp32", "loader": {"workers": 3, "pin_memory": True}},
        {"optimizer": {"lr_rule": "sqrt", "lr_batch": 32}, "evaluate": {"metric": "f1"}},
    ],
    ids=str,
)
def test_every_decision_has_a_reason(solve, machine, keys):
    plan, _ = solve(machine, **keys)
    for name, decision in plan.decisions().items():
        assert decision.reason.strip(), name


def test_solving_twice_gives_the_same_plan(solve):
    assert solve("8xa100")[0].digest() == solve("8xa100")[0].digest()


@pytest.mark.parametrize(("gpus", "steps"), [(1, 7375), (2, 3688), (4, 1844), (8, 922)])
def test_guide_g4_steps_per_epoch(solve, make_job, make_trace, load_machine, gpus, steps):
    trace = {"num_samples": 29_500}
    plan, _ = solve("8xa100", batch_per_gpu=4, devices={"gpus": gpus}, epochs=3, trace=trace)
    assert plan.batch.global_batch_size.value == 4 * gpus
    assert plan.batch.micro_batch_size.value == 4
    assert plan.batch.steps_per_epoch.value == steps
    assert plan.batch.total_steps.value == 3 * steps
    job, machine = make_job(batch_per_gpu=4), load_machine("8xa100")
    (row,) = scaling_table(job, machine, make_trace(**trace), [gpus])
    assert (row.ranks, row.steps_per_epoch, row.global_batch_size) == (gpus, steps, 4 * gpus)
    assert row.speedup == gpus


def test_guide_g3_batch_times_accumulation_times_gpus(solve):
    plan, _ = solve(
        "8xa100", batch_per_gpu=8, gradient_accumulation=8, devices={"gpus": [0, 1, 2, 3]}
    )
    assert plan.batch.global_batch_size.value == 256
    assert plan.batch.micro_batch_size.value == 8
    assert plan.batch.accumulation.value == 8
    assert "8 per GPU x 8 accumulation x 4 ranks = 256" in plan.batch.global_batch_size.reason
    assert "256 = 8 micro x 8 accumulation x 4 ranks" in plan.batch.accumulation.reason


def test_guide_g3_checkpoints_at_40_80_120(solve):
    keys = {"batch_per_gpu": 8, "gradient_accumulation": 8, "epochs": 3}
    plan, _ = solve("1xt4", trace={"num_samples": 2500}, **keys)
    assert plan.batch.global_batch_size.value == 64
    assert plan.saving.save_every_steps.value == 40
    assert plan.batch.total_steps.value == 120


def test_a_batch_that_does_not_divide_prints_the_deal(solve):
    plan, _ = solve("cpu", global_batch_size=10, micro_batch_size=3, devices={"cpu": 3})
    assert plan.batch.accumulation.value == 2
    assert "10 samples in 4 micro-batches of at most 3" in plan.batch.accumulation.reason
    assert "2, 1, 1" in plan.batch.accumulation.reason


@given(
    total=st.integers(1, 500),
    micro=st.none() | st.integers(1, 60),
    accumulation=st.none() | st.integers(1, 5),
    ranks=st.integers(1, 17),
)
def test_every_sample_of_a_batch_has_a_place(total, micro, accumulation, ranks):
    job = load_job(
        {
            "recipe": "digits",
            "epochs": 1,
            "global_batch_size": total,
            "micro_batch_size": micro,
            "gradient_accumulation": accumulation,
        }
    ).job
    sizes = choose_batch(job, ranks)
    assert sizes.global_batch_size.value == total
    assert sizes.micro_batch_size.value * sizes.accumulation.value * ranks >= total
    if micro is None and accumulation is not None:
        assert sizes.accumulation.value <= accumulation


def test_the_global_batch_is_kept_on_resume_with_other_ranks(solve):
    before, _ = solve("8xa100", batch_per_gpu=4, devices={"gpus": 2})
    assert before.batch.global_batch_size.value == 8
    now, _ = solve("8xa100", batch_per_gpu=4, devices={"gpus": 8}, previous=before)
    assert now.batch.global_batch_size.value == 8
    assert "kept" in now.batch.global_batch_size.reason
    assert now.devices.ranks.value == 8
    assert now.batch.steps_per_epoch == before.batch.steps_per_epoch
    assert now.revision == before.revision + 1


def test_the_rate_is_kept_on_resume_with_other_ranks(solve):
    optimizer = {"lr": 5e-5, "lr_rule": "linear"}
    before, _ = solve("8xa100", batch_per_gpu=32, devices={"gpus": 4}, optimizer=optimizer)
    assert before.learning.lr.value == pytest.approx(2e-4)
    now, _ = solve(
        "8xa100", batch_per_gpu=32, devices={"gpus": 8}, optimizer=optimizer, previous=before
    )
    assert now.learning.lr == before.learning.lr


def test_a_rate_asked_anew_on_resume_is_taken(solve):
    before, _ = solve(optimizer={"lr": 0.1})
    now, _ = solve(optimizer={"lr": 0.2}, previous=before)
    assert now.learning.lr.value == 0.2


def test_length_in_epochs_or_steps(solve):
    plan, _ = solve(global_batch_size=64, trace={"num_samples": 1437})
    assert plan.batch.steps_per_epoch.value == 23
    assert plan.batch.total_steps.value == 230
    plan, _ = solve(steps=17)
    assert plan.batch.total_steps.value == 17


@pytest.mark.parametrize(
    ("every", "steps"), [("1 epochs", 23), ("0.5 epochs", 12), ("7 steps", 7), (None, None)]
)
def test_evaluation_and_saving_are_counted_in_steps(solve, every, steps):
    plan, _ = solve(evaluate={"every": every}, checkpoint={"every": every})
    assert plan.evaluation.evaluate_every.value == steps
    assert plan.saving.save_every_steps.value == steps
    assert plan.saving.save_every_s.value is None


def test_saving_by_the_clock_is_counted_in_seconds(solve):
    plan, _ = solve(checkpoint={"every": "2.5 minutes"})
    assert plan.saving.save_every_s.value == 150
    assert plan.saving.save_every_steps.value is None


def test_without_a_test_split_nothing_is_evaluated(solve):
    plan, _ = solve(trace={"num_test_samples": 0})
    assert plan.evaluation.evaluate_every.value is None
    assert "no test split" in plan.evaluation.evaluate_every.reason


def test_the_average_of_the_weights_is_off_unless_asked_for(solve):
    assert solve("cpu")[0].learning.ema.value is None
    plan, _ = solve("cpu", ema={"decay": 0.99, "warmup": True})
    assert plan.learning.ema.value == 0.99
    assert "(1 + n) / (10 + n)" in plan.learning.ema.reason
    assert "averaged weights" in plan.learning.ema.reason
    plan, _ = solve("cpu", ema={"decay": 0.99, "evaluate": False})
    assert "plain weights" in plan.learning.ema.reason


def test_the_metric_is_the_jobs_or_the_recipes(solve):
    plan, _ = solve()
    assert (plan.evaluation.metric.value, plan.evaluation.metric_mode.value) == ("accuracy", "max")
    plan, _ = solve(evaluate={"metric": "loss", "mode": "min"})
    assert (plan.evaluation.metric.value, plan.evaluation.metric_mode.value) == ("loss", "min")


def test_evaluation_batch_is_the_micro_batch_unless_asked(solve):
    plan, _ = solve(devices={"cpu": 2}, global_batch_size=64)
    assert plan.evaluation.evaluate_batch_size.value == 32
    plan, _ = solve(evaluate={"batch_size": 100})
    assert plan.evaluation.evaluate_batch_size.value == 100


def test_ranks_with_nothing_to_do_are_a_finding(solve):
    _, findings = solve("16x2080", global_batch_size=24, micro_batch_size=8)
    (finding,) = findings
    assert finding.slug == "idle-ranks"
    assert finding.severity == "warning"
    assert "13 of 16 ranks" in finding.what
    assert "--batch-size 128" in finding.fix


def test_ranks_idle_because_the_data_is_small_are_a_finding(solve):
    # A batch of 64 over 2 ranks is 2 slots of 32, but 7 samples never fill more than one.
    _, findings = solve(devices={"cpu": 2}, global_batch_size=64, trace={"num_samples": 7})
    beyond, idle = findings
    assert (beyond.slug, beyond.fix) == ("batch-beyond-data", "--batch-size 7, or less")
    assert (idle.slug, idle.fix) == ("idle-ranks", "micro_batch_size=4, or --gpus 1")


@pytest.mark.parametrize(
    ("samples", "total", "micro", "is_found"),
    [
        (65, 64, 32, True),  # the last step holds one sample
        (64, 64, 32, False),
        (66, 64, 32, False),
        (64, 8, 1, True),  # every micro-batch does
        (65, 5, 2, True),  # 5 samples in slots of at most 2: 1, 2, 2
        (67, 8, 2, True),  # 3 samples at the end: 1, 2
        (68, 8, 2, False),
    ],
)
def test_batchnorm_over_one_sample_is_a_finding(solve, samples, total, micro, is_found):
    keys = {"global_batch_size": total, "micro_batch_size": micro, "devices": {"cpu": 2}}
    trace = {"num_samples": samples, "has_batchnorm": True}
    _, findings = solve(trace=trace, **keys)
    assert slugs(findings) == (["batchnorm-of-one"] if is_found else [])
    smallest = min(
        slot.stop - slot.start
        for step in range(BatchPlan(samples, total, micro).steps_per_epoch)
        for slot in BatchPlan(samples, total, micro).slots_of(step)
    )
    assert (smallest == 1) is is_found, "the table above is wrong"
    _, findings = solve(trace={**trace, "has_batchnorm": False}, **keys)
    assert findings == []


@pytest.mark.parametrize(
    ("total", "micro", "ranks", "speedup"),
    [(64, 16, 4, 4.0), (64, 64, 1, 1.0), (10, 3, 3, 2.0), (8, 8, 4, 1.0), (9, 3, 2, 1.5)],
)
def test_expected_speedup_is_what_the_deal_allows(total, micro, ranks, speedup):
    assert expected_speedup(BatchPlan(1000, total, micro), ranks).value == speedup


def test_identity_holds_what_the_sample_order_depends_on(solve):
    plan, _ = solve(seed=5)
    assert plan.history.identity["seed"] == 5
    assert plan.history.identity["num_samples"] == 1437
    assert plan.history.identity["global_batch_size"] == 64
    assert plan.history.identity["data_fingerprint"] == "d" * 16
