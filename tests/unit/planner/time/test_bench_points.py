"""What `bench` measures of a job, how it is found again, and what holds a step up."""

import pytest

from phalanx.machine.calibration import Calibration, MeasuredStep
from phalanx.planner.schema.footprint import Line
from phalanx.planner.time.bench_points import choose_micro_batches, job_key, measured_steps, plan_at
from phalanx.planner.time.bottleneck import find_bottleneck


def step(micro_batch=32, **figures):
    parts = {"data_s": 0.0, "compute_s": 0.1, "communication_s": 0.0, "overhead_s": 0.0, **figures}
    whole = sum(parts[f"{name}_s"] for name in ("data", "compute", "communication", "overhead"))
    known = {"job_key": "k", "accumulation": 1, "fetch_s": 1e-5, "step_s": whole}
    return MeasuredStep(micro_batch=micro_batch, **{**known, **parts})


@pytest.mark.parametrize(
    ("keys", "is_same"),
    [
        ({"seed": 5}, True),
        ({"epochs": 9}, True),
        ({"global_batch_size": 64}, True),
        ({"optimizer": {"lr": 0.5}}, True),
        ({"optimizer": {"name": "sgd"}}, False),
        ({"optimizer": {"clip_norm": 1.0}}, False),
        ({"ema": {"decay": 0.9}}, False),
        ({"precision": "fp32"}, False),
        ({"determinism": "resume"}, False),
    ],
    ids=str,
)
def test_a_job_is_found_again_by_what_decides_its_speed(solve, keys, is_same):
    before, after = (solve("8xa100", **extra)[0] for extra in ({}, keys))
    assert (job_key(before) == job_key(after)) is is_same


@pytest.mark.parametrize(
    "fact",
    [{"recipe_fingerprint": "other"}, {"options": {"width": 3}}, {"input_bytes": 7}],
    ids=str,
)
def test_another_model_or_sample_is_another_job(solve, fact):
    assert job_key(solve("1xt4")[0]) != job_key(solve("1xt4", trace=fact)[0])


def test_steps_of_the_same_ranks_come_first_and_one_rank_stands_for_others(solve):
    plan = solve("8xa100")[0]
    key = job_key(plan)
    alone, others = step(job_key=key), step(job_key=key, strategy="ddp", ranks=2)
    same = step(job_key=key, strategy="ddp", ranks=8)

    def found(*steps):
        kept = Calibration(device="x", measured_at="", torch_version="", steps=(*steps, step()))
        return measured_steps(kept, plan)

    assert found(alone, others, same) == [same]
    assert found(alone, others) == [others]
    assert found(alone) == [alone]
    assert found() == []


def test_every_measured_step_is_whole(solve):
    plan = plan_at(solve("8xa100", trace={"num_samples": 100})[0], 3, 2)
    batch = plan.micro_batches
    assert batch.num_samples == 96  # 2 steps of 8 ranks x 2 x 3
    sizes = {
        slot.stop - slot.start
        for number in range(5)
        for rank in range(8)
        for slot in batch.share_of(number, rank, 8).slots
    }
    assert sizes == {3}
    assert plan_at(plan, 13) is None


def test_micro_batches_go_as_far_as_samples_and_memory(solve):
    plan, _ = solve("1xt4", trace={"num_samples": 100}, global_batch_size=64)
    assert choose_micro_batches(plan) == [16, 32, 64]  # 128 are more than there are
    large = {"num_samples": 1000, "activation_bytes": {"fp32": [Line(0, 200 * 2**20)]}}
    plan, _ = solve("1xt4", trace=large, global_batch_size=40, precision="fp32")
    assert (
        max(choose_micro_batches(plan)) == plan.micro_batches.largest_slot
    )  # 80 x 200 MiB > 16 GB


def test_a_job_that_waits_for_samples_is_told_how_many_loaders(solve):
    plan, _ = solve("8xa100", loader={"workers": 1})
    # 32 x 10 ms to fetch, 100 ms to compute meanwhile: 4 processes
    found = find_bottleneck(plan, [step(data_s=0.2, fetch_s=0.01)], cores=64)
    assert (found.part, "`loader.workers=4`" in found.change) == ("data", True)
    few = find_bottleneck(plan, [step(data_s=0.2, fetch_s=0.01)], cores=2)
    assert "4 loader processes for 2 cores" in few.change
    assert "storage" in find_bottleneck(plan, [step(data_s=0.2)], cores=64).change


def test_each_bottleneck_has_its_own_change(solve):
    plan, _ = solve("8xa100", precision="fp32", global_batch_size=256)
    assert "precision=bf16" in find_bottleneck(plan, [step()], cores=8).change
    found = find_bottleneck(plan, [step(communication_s=0.05)], cores=8)
    assert (found.part, "gradient_accumulation=2" in found.change) == ("communication", True)
    slow = step(overhead_s=0.1)
    assert "--micro 64,128" in find_bottleneck(plan, [slow], cores=8).change
    fast = step(micro_batch=64, overhead_s=0.1)
    assert "100 % more" in find_bottleneck(plan, [slow, fast], cores=8).change
    half, _ = solve("8xa100", precision="bf16", global_batch_size=256)
    assert find_bottleneck(half, [step()], cores=8).change is None
    assert find_bottleneck(half, [], cores=8) is None


def test_the_largest_is_not_always_the_fastest(solve):
    plan, _ = solve("8xa100", precision="bf16", global_batch_size=256)
    found = find_bottleneck(plan, [step(micro_batch=16, compute_s=0.04), step()], cores=8)
    assert found.micro_batch == 32
    assert "micro_batch_size=16" in found.change
