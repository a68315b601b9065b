"""Two plans of one job that can be compared number by number."""

import pytest

from phalanx.job.schema import Devices
from phalanx.planner.schema.footprint import Line
from phalanx.planner.schema.micro_batches import BatchPlan
from phalanx.planner.schema.plan import Decision
from phalanx.planner.solve import solve_plan
from phalanx.planner.verify_plans import (
    common_micro_batch,
    comparable_sides,
    devices_for,
    planned_sides,
)


@pytest.mark.parametrize(
    ("machine", "asked", "ranks", "expected"),
    [
        ("cpu", {}, 3, Devices(cpu=3)),
        ("mps", {}, 2, Devices(cpu=2)),
        ("1xt4", {}, 2, Devices(cpu=2)),
        ("8xa100", {}, 2, Devices(gpus=[0, 1])),
        ("8xa100", {"gpus": "all"}, 8, Devices(gpus=list(range(8)))),
        ("8xa100", {"gpus": [5, 2, 7]}, 2, Devices(gpus=[5, 2])),
        ("8xa100", {"gpus": [5]}, 2, Devices(cpu=2)),
        # Ranks may share a GPU where the job says so.
        ("1xt4", {"gpus": [0, 0], "backend": "gloo"}, 2, Devices(gpus=[0, 0], backend="gloo")),
        ("8xa100", {"gpus": 3}, 4, Devices(cpu=4)),
        ("8xa100", {"cpu": 1}, 4, Devices(cpu=4)),
        ("cpu", {"gpus": 8, "backend": "nccl"}, 2, Devices(cpu=2)),
    ],
)
def test_ranks_are_gpus_of_the_job_or_cpu_processes(
    make_job, load_machine, machine, asked, ranks, expected
):
    devices, note = devices_for(make_job(devices=asked), load_machine(machine), ranks)
    assert devices == expected
    # Who asked for CPU processes need not be told.
    assert (note is not None) == (expected.cpu is not None and "cpu" not in asked)


@pytest.mark.parametrize(
    ("total", "micro", "ranks", "batchnorm", "expected"),
    [
        (64, 32, 2, False, 16),  # two for each rank
        (64, 8, 2, False, 8),  # the job's own are smaller
        (10, 5, 2, False, 3),
        (4, 2, 2, False, 1),
        (32, 16, 2, True, 8),
        (10, 5, 2, True, 5),  # 2 and 3 samples are too few for BatchNorm
        (4, 2, 2, True, 2),  # more cannot be had
        (3, 2, 2, True, 1),
        (2, 1, 4, False, 1),
    ],
)
def test_micro_batches_give_every_rank_two(total, micro, ranks, batchnorm, expected):
    batch = BatchPlan(1000, total, micro)
    assert common_micro_batch(batch, ranks, 5, batchnorm).value == expected


def test_the_end_of_an_epoch_counts_for_batchnorm():
    # The third step has 5 samples: micro-batches of 4 cut them into 2 and 3, those of 8 do not.
    batch = BatchPlan(37, 16, 8)
    assert common_micro_batch(batch, 2, 2, True).value == 4
    assert common_micro_batch(batch, 2, 3, True).value == 8
    assert common_micro_batch(batch, 2, 3, False).value == 4


def sides(make_job, make_trace, load_machine, machine="cpu", **keys):
    job, place = make_job(**keys), load_machine(machine)
    plan, _ = solve_plan(job, place, make_trace())
    one, many, _ = comparable_sides(job, place, make_trace(), plan, steps=5)
    return one, many, plan


@pytest.mark.parametrize(
    ("machine", "devices"), [("cpu", {"cpu": 2}), ("8xa100", {"gpus": [3, 4]})]
)
@pytest.mark.parametrize(
    "batch",
    [
        {"global_batch_size": 64},
        {"batch_per_gpu": 128, "gradient_accumulation": 2},
        {"global_batch_size": 64, "determinism": "exact"},
    ],
    ids=str,
)
def test_both_sides_do_the_same_with_the_same(
    make_job, make_trace, load_machine, machine, devices, batch
):
    one, many, plan = sides(
        make_job, make_trace, load_machine, machine, devices=devices, precision="fp64", **batch
    )
    assert (one.plan.devices.ranks.value, many.plan.devices.ranks.value) == (1, 2)
    assert (one.plan.parallel.strategy.value, many.plan.parallel.strategy.value) == (
        "single",
        "ddp",
    )
    assert one.plan.devices.gpus.value == many.plan.devices.gpus.value[:1]
    assert one.plan.micro_batches == many.plan.micro_batches
    assert many.plan.batch.global_batch_size.value == plan.batch.global_batch_size.value
    # With batch_per_gpu the rate follows the number of ranks: it is that of the many on both.
    names = ["lr", "warmup_steps", "total_steps", "threads", "workers", "precision", "determinism"]
    alone, together = one.plan.decisions(), many.plan.decisions()
    for name in names:
        assert alone[name].value == together[name].value, name
    assert many.plan.learning.lr == plan.learning.lr
    for side in (one, many):
        assert side.plan.batch.num_test_samples.value == 0
        assert side.job.micro_batch_size == side.plan.batch.micro_batch_size.value
        assert len(side.plan.micro_batches.slots_of(0)) >= 4


def test_a_side_can_be_cut(make_job, make_trace, load_machine):
    _, many, plan = sides(make_job, make_trace, load_machine, devices={"cpu": 2})
    smaller = many.cut(plan.batch.micro_batch_size.__class__(4, "a rank ran out of memory"))
    assert smaller.plan.micro_batches.num_slots == 16
    assert smaller.plan.batch.accumulation.value == 8
    assert smaller.job.micro_batch_size == 4


def test_batchnorm_is_compared_without_synchronising(make_job, make_trace, load_machine):
    job, place = make_job(devices={"cpu": 2}, sync_batchnorm=True), load_machine("cpu")
    trace = make_trace(has_batchnorm=True)
    plan, _ = solve_plan(job, place, trace)
    assert plan.numerics.sync_batchnorm.value
    one, many, findings = comparable_sides(job, place, trace, plan, steps=5)
    assert not one.plan.numerics.sync_batchnorm.value
    assert not many.plan.numerics.sync_batchnorm.value
    assert [(f.slug, f.severity) for f in findings] == [("verify-unsynced", "note")]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"global_batch_size": 64}, (64, 32)),
        ({"global_batch_size": 64, "gradient_accumulation": 4}, (16, 8)),
        # Nothing to compare: both see the same micro-batches.
        ({"global_batch_size": 64, "micro_batch_size": 8}, None),
        ({"global_batch_size": 64, "determinism": "exact"}, None),
        ({"batch_per_gpu": 16, "gradient_accumulation": 2}, None),
    ],
    ids=str,
)
def test_micro_batches_are_those_that_train_plans(
    make_job, make_trace, load_machine, keys, expected
):
    job, place = make_job(devices={"cpu": 2}, precision="fp64", **keys), load_machine("cpu")
    plan, _ = solve_plan(job, place, make_trace())
    found = planned_sides(job, place, make_trace(), plan, precision="auto")
    if expected is None:
        assert found is None
        return
    assert tuple(side.micro for side in found) == expected
    assert [side.plan.devices.ranks.value for side in found] == [1, 2]
    for side in found:
        assert not side.has_dropout
        assert side.plan.numerics.precision.value == "fp64"
        assert side.plan.batch.global_batch_size.value == plan.batch.global_batch_size.value


def test_on_gpus_they_are_those_of_the_precision_it_trains_in(make_job, make_trace, load_machine):
    place = load_machine("8xa100")
    lines = {"fp32": [Line(0, 2**30)], "bf16": [Line(0, 2**29)]}
    trace = make_trace(activation_bytes=lines)
    job = make_job(devices={"gpus": [0, 1]}, global_batch_size=64, compile="off")

    def micro_batches(precision):
        jobs = (
            job.model_copy(update={"devices": Devices(gpus=gpus), "precision": precision})
            for gpus in ([0], [0, 1])
        )
        return [solve_plan(each, place, trace)[0].batch.micro_batch_size.value for each in jobs]

    wide = job.model_copy(update={"precision": "fp64"})
    plan, _ = solve_plan(wide, place, trace)
    found = planned_sides(wide, place, trace, plan, precision="bf16")
    assert [side.micro for side in found] == micro_batches("bf16")
    # A sample takes four times as much in fp64: its own plan would cut the batch finer.
    assert micro_batches("bf16") != micro_batches("fp64")


def test_synced_batchnorm_is_compared_even_in_the_same_micro_batches(
    make_job, make_trace, load_machine
):
    keys = {"global_batch_size": 64, "micro_batch_size": 8, "sync_batchnorm": True}
    job, place = make_job(devices={"cpu": 2}, **keys), load_machine("cpu")
    trace = make_trace(has_batchnorm=True)
    plan, _ = solve_plan(job, place, trace)
    one, many = planned_sides(job, place, trace, plan, precision="fp64")
    assert (one.plan.numerics.sync_batchnorm.value, many.plan.numerics.sync_batchnorm.value) == (
        False,
        True,
    )
    assert one.has_dropout, "masks are the same where micro-batches are"


def test_a_side_knows_whether_its_micro_batches_are_of_one_size(make_job, make_trace, load_machine):
    _, many, _ = sides(make_job, make_trace, load_machine, devices={"cpu": 2})
    assert many.cut(Decision(16, "")).is_even == (many.plan.batch.num_samples.value % 16 == 0)
    assert not many.cut(Decision(7, "")).is_even
