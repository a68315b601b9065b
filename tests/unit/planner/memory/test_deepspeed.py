"""What a plan says of DeepSpeed, and what DeepSpeed is told."""

import pytest

from phalanx.planner.memory.deepspeed import deepspeed_settings
from phalanx.planner.memory.prediction import predict_parts
from phalanx.planner.revise import halve_micro_batch, what_would_fit
from phalanx.planner.schema.trace import Weight

CONFIG = {
    "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu", "pin_memory": False}},
    "fp16": {"initial_scale_power": 12},
    "wall_clock_breakdown": True,
}


def settings(make_job, solve, **keys):
    keys = {"strategy": "deepspeed", "devices": {"cpu": 2}, **keys}
    job = make_job(**keys)
    plan, _ = solve("cpu", **keys)
    return deepspeed_settings(job, plan), plan


def test_the_defaults_are_stage_2_without_offload(make_job, solve):
    told, plan = settings(make_job, solve, optimizer={"clip_norm": 0.5})
    assert (plan.parallel.zero_stage.value, plan.parallel.offload.value) == (2, None)
    assert told["zero_optimization"] == {"stage": 2, "reduce_bucket_size": 1000}
    assert (told["bf16"], told["fp16"]) == ({"enabled": False}, {"enabled": False})
    assert (told["gradient_clipping"], told["train_micro_batch_size_per_gpu"]) == (0.5, 32)
    assert told["zero_allow_untested_optimizer"] is True
    assert told["zero_force_ds_cpu_optimizer"] is False


def test_what_the_file_says_is_handed_on_beside_the_plan(make_job, solve):
    told, plan = settings(make_job, solve, precision="fp16", deepspeed={"config": CONFIG})
    assert (plan.parallel.zero_stage.value, plan.parallel.offload.value) == (3, "weights")
    assert told["zero_optimization"]["offload_param"] == {"device": "cpu", "pin_memory": False}
    assert told["fp16"] == {"initial_scale_power": 12, "enabled": True}
    assert told["wall_clock_breakdown"] is True
    assert "offload_optimizer" not in told["zero_optimization"]
    # A run that continues may take an offload back: nothing of it is left.
    rest = {"zero_optimization": {"offload_param": {"pin_memory": False}}}
    told, _ = settings(make_job, solve, deepspeed={"offload_optimizer": True, "config": rest})
    assert told["zero_optimization"]["offload_optimizer"] == {"device": "cpu"}
    assert "offload_param" not in told["zero_optimization"]


@pytest.mark.parametrize(
    ("stage", "offload", "accumulation", "is_managed"),
    [
        (2, False, 1, True),
        (2, False, 4, True),
        (2, True, 1, True),
        (2, True, 4, False),
        (1, True, 4, True),  # with `overlap_comm` DeepSpeed would refuse
    ],
)
def test_passes_added_up_in_host_memory_are_counted_here(
    make_job, solve, stage, offload, accumulation, is_managed
):
    deepspeed = {"offload_optimizer": offload, "stage": stage}
    keys = {"gradient_accumulation": accumulation, "deepspeed": deepspeed}
    told, plan = settings(make_job, solve, **keys)
    assert told["managed_gradient_accumulation"] is is_managed
    if offload and accumulation == 1:  # also when a rank ran out of memory since
        job = make_job(strategy="deepspeed", devices={"cpu": 2}, **keys)
        cut = halve_micro_batch(plan)
        assert deepspeed_settings(job, cut)["managed_gradient_accumulation"] is False


def test_gradients_in_fp32_at_stage_1_are_refused(solve):
    types = {"data_types": {"grad_accum_dtype": "fp32"}}
    keys = {"strategy": "deepspeed", "precision": "bf16", "devices": {"cpu": 2}}
    for stage, slugs in ((1, ["deepspeed-gradients"]), (2, [])):
        _, findings = solve("cpu", deepspeed={"stage": stage, "config": types}, **keys)
        assert [finding.slug for finding in findings] == slugs


MIB = 2**20
SIZES = {"parameters": 8 * MIB, "parameter_bytes": 32 * MIB}
SIZES |= {"trainable_parameters": 4 * MIB, "trainable_bytes": 16 * MIB}
SIZES["weights"] = [Weight((1024, 1024), 4)] * 4 + [Weight((1024, 4096), 4, False, None)]


@pytest.mark.parametrize(
    ("stage", "offload", "weights", "gradients", "optimizer"),
    [
        # bf16: 16 MiB of weights, 8 of gradients; fp32: 16 MiB of weights and of each moment. What
        # is spread is halved. Stage 3 keeps no parameter of more than 100,000 elements whole.
        (1, False, 16, 8, 24),
        (2, False, 16, 4, 24),
        (2, True, 16, 4, 0),
        (3, False, 8, 4, 24),
        (3, True, 0, 4, 0),
    ],
)
def test_memory_is_that_of_a_share(solve, stage, offload, weights, gradients, optimizer):
    settings = {"stage": stage, "offload_optimizer": offload}
    settings["offload_parameters"] = offload and stage == 3
    keys = {"strategy": "deepspeed", "precision": "bf16", "deepspeed": settings}
    plan, _ = solve("2x4090", trace=SIZES, **keys)
    parts = predict_parts(plan)
    found = [size // MIB for size in (parts.weights, parts.gradients, parts.optimizer)]
    assert found == [weights, gradients, optimizer]
    wishes = " ".join(what_would_fit(plan))
    assert ("deepspeed.stage=3" in wishes) == (stage < 3)
    assert ("deepspeed.offload_optimizer=true" in wishes) != offload
    assert ("deepspeed.offload_parameters=true" in wishes) == (stage == 3 and not offload)
