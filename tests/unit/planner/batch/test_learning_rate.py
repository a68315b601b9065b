"""How the rate follows the batch: the numbers of the guides, and their arithmetic in words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.job import Interval
from phalanx.planner.batch.learning_rate import choose_warmup, in_steps, lr_findings, scale_lr
from phalanx.planner.scaling import scaling_table


@pytest.mark.parametrize(("ranks", "lr"), [(1, 1.25e-6), (2, 2.5e-6), (4, 5.0e-6)])
def test_guide_g4_linear_scaling(make_job, make_trace, load_machine, ranks, lr):
    job = make_job(batch_per_gpu=4, optimizer={"lr": 1.25e-6, "lr_rule": "linear"})
    trace = make_trace(num_samples=29_500)
    (row,) = scaling_table(job, load_machine("8xa100"), trace, [ranks])
    assert row.lr == pytest.approx(lr, rel=1e-12)


@pytest.mark.parametrize(("ranks", "lr"), [(1, 5e-5), (2, 1e-4), (4, 2e-4), (8, 4e-4)])
def test_guide_g5_linear_scaling(make_job, make_trace, load_machine, ranks, lr):
    job = make_job(batch_per_gpu=32, optimizer={"lr": 5e-5, "lr_rule": "linear"})
    (row,) = scaling_table(job, load_machine("8xa100"), make_trace(), [ranks])
    assert row.lr == pytest.approx(lr, rel=1e-12)


def test_auto_leaves_the_rate_alone_below_256_and_says_what_linear_would_give(make_job):
    decision = scale_lr(make_job(batch_per_gpu=32, optimizer={"lr": 5e-5}), 128)
    assert decision.value == 5e-5
    for text in ("not scaled", "128", "256", "5e-05 x 128/32 = 0.0002"):
        assert text in decision.reason


def test_auto_is_linear_from_256_on(make_job):
    decision = scale_lr(make_job(batch_per_gpu=32, optimizer={"lr": 5e-5}), 256)
    assert decision.value == pytest.approx(4e-4)
    assert "5e-05 x 256/32 = 0.0004" in decision.reason
    assert "linear" in decision.reason


def test_sqrt_rule(make_job):
    optimizer = {"lr": 1e-3, "lr_rule": "sqrt", "lr_batch": 64}
    decision = scale_lr(make_job(global_batch_size=256, optimizer=optimizer), 256)
    assert decision.value == pytest.approx(2e-3)
    assert "sqrt(256/64)" in decision.reason


def test_none_leaves_the_rate_as_stated(make_job):
    optimizer = {"lr": 1e-3, "lr_rule": "none", "lr_batch": 64}
    decision = scale_lr(make_job(global_batch_size=4096, optimizer=optimizer), 4096)
    assert decision.value == 1e-3
    assert "none" in decision.reason


def test_lr_batch_is_what_the_rate_was_stated_for(make_job):
    optimizer = {"lr": 0.1, "lr_rule": "linear", "lr_batch": 128}
    for total, lr in ((64, 0.05), (128, 0.1), (512, 0.4)):
        decision = scale_lr(make_job(global_batch_size=total, optimizer=optimizer), total)
        assert decision.value == pytest.approx(lr)
        assert "lr_batch = 128" in decision.reason


def test_a_global_batch_is_its_own_reference(make_job):
    decision = scale_lr(make_job(global_batch_size=4096, optimizer={"lr": 0.1}), 4096)
    assert decision.value == 0.1
    assert "4096" in decision.reason


def test_accumulation_belongs_to_one_gpus_share(make_job):
    optimizer = {"lr": 0.1, "lr_rule": "linear"}
    job = make_job(batch_per_gpu=8, gradient_accumulation=8, optimizer=optimizer)
    assert scale_lr(job, 64).value == 0.1
    assert scale_lr(job, 256).value == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("warmup", "steps"),
    [("5%", 50), ("2 epochs", 200), ("0.5 epochs", 50), ("7 steps", 7), ("0 steps", 0), (30, 30)],
)
def test_warmup_as_asked(make_job, warmup, steps):
    job = make_job(schedule={"warmup": warmup})
    decision = choose_warmup(job, lr=job.optimizer.lr, total_steps=1000, steps_per_epoch=100)
    assert decision.value == steps
    assert "schedule.warmup" in decision.reason


def test_a_warmup_is_never_longer_than_the_run(make_job):
    job = make_job(schedule={"warmup": "50 epochs"})
    decision = choose_warmup(job, lr=1e-3, total_steps=1000, steps_per_epoch=100)
    assert decision.value == 1000


def test_automatic_warmup_is_longer_for_a_raised_rate(make_job):
    job = make_job(optimizer={"lr": 1e-3})
    lengths = {"total_steps": 1000, "steps_per_epoch": 100}
    as_stated = choose_warmup(job, lr=1e-3, **lengths)
    raised = choose_warmup(job, lr=2e-3, **lengths)
    assert (as_stated.value, raised.value) == (50, 100)
    assert "5% of 1000" in as_stated.reason
    assert "10% of 1000" in raised.reason


@given(st.floats(0.001, 50), st.integers(1, 500))
def test_an_interval_of_epochs_is_at_least_one_step(count, steps_per_epoch):
    interval = Interval(count=count, unit="epochs")
    steps = in_steps(interval, total_steps=10_000, steps_per_epoch=steps_per_epoch)
    assert steps >= 1
    assert abs(steps - count * steps_per_epoch) <= 1


def test_a_rate_of_sgd_under_adamw_is_said(make_job):
    # 0.01 for 64 is a rate of SGD; sixteen GPUs make 0.04 of it.
    scaled = {"lr": 0.01, "lr_batch": 64, "lr_rule": "linear"}
    for name, slugs in (("adamw", ["adamw-rate"]), ("sgd", [])):
        job = make_job(global_batch_size=256, optimizer={**scaled, "name": name})
        found = lr_findings(job, scale_lr(job, 256))
        assert [finding.slug for finding in found] == slugs
    job = make_job(global_batch_size=256, optimizer=scaled)
    (finding,) = lr_findings(job, scale_lr(job, 256))
    assert "0.04" in finding.what
    assert "0.01 x 256/64" in finding.why
    assert "--lr 0.001" in finding.fix
    assert finding.severity == "warning"
