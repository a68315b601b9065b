"""Who holds which part of the model."""

import pytest

from phalanx.planner.memory.prediction import predict_parts
from phalanx.planner.revise import halve_micro_batch
from tests.unit.planner.memory.test_fit import OFF, sizes

GIB = 2**30


def chosen(plan):
    return plan.parallel.strategy.value, plan.parallel.shard_ranks.value, plan.devices.backend.value


@pytest.mark.parametrize(
    ("machine", "changes", "expected"),
    [
        ("8xa100", {}, ("ddp", 1, "nccl")),
        ("8xa100", {"strategy": "fsdp"}, ("fsdp", 8, "nccl")),
        ("8xa100", {"strategy": "fsdp", "fsdp": {"shard_ranks": 2}}, ("fsdp", 2, "nccl")),
        ("1xt4", {"strategy": "fsdp"}, ("single", 1, "none")),
        ("1xt4", {"strategy": "fsdp", "fsdp": {"offload": True}}, ("fsdp", 1, "nccl")),
        ("mps", {"strategy": "fsdp"}, ("single", 1, "none")),
        ("cpu", {"strategy": "fsdp", "devices": {"cpu": 3}}, ("fsdp", 3, "gloo")),
    ],
)
def test_the_strategy(solve, machine, changes, expected):
    plan, findings = solve(machine, **changes)
    assert chosen(plan) == expected
    assert findings == []


@pytest.mark.parametrize(("shards", "nearest"), [(3, 2), (16, 8)])
def test_ranks_that_cannot_be_grouped(solve, shards, nearest):
    _, findings = solve("8xa100", strategy="fsdp", fsdp={"shard_ranks": shards})
    (finding,) = findings
    assert (finding.slug, finding.severity) == ("fsdp-shard-ranks", "error")
    assert f"fsdp.shard_ranks = {shards}; 8 ranks" in finding.why
    assert finding.fix == f"fsdp.shard_ranks={nearest}"


def test_fsdp_needs_collectives(solve):
    _, findings = solve("mps", strategy="fsdp", fsdp={"offload": True})
    assert [finding.slug for finding in findings] == ["fsdp-on-mps"]


@pytest.mark.parametrize(
    ("changes", "parameter_bytes", "expected"),
    [
        ({"strategy": "fsdp"}, GIB, "whole"),
        ({"strategy": "fsdp"}, 200 * GIB, "parts"),
        ({"strategy": "fsdp", "fsdp": {"build": "whole"}}, 200 * GIB, "whole"),
        ({"strategy": "fsdp", "fsdp": {"build": "parts"}}, GIB, "parts"),
        ({"strategy": "ddp"}, 200 * GIB, "whole"),
    ],
)
def test_a_model_too_large_for_the_host_is_built_in_parts(
    solve, changes, parameter_bytes, expected
):
    plan, _ = solve("8xa100", trace={"parameter_bytes": parameter_bytes}, **changes)
    assert plan.parallel.build.value == expected
    if expected == "parts" and "fsdp" not in changes:
        assert "8 ranks x 200.0 GiB" in plan.parallel.build.reason


def test_batchnorm_is_synchronised_on_request(solve):
    norm = {"has_batchnorm": True}
    plan, findings = solve("2x4090", sync_batchnorm=True, trace=norm)
    assert plan.numerics.sync_batchnorm.value is True
    assert "2 ranks" in plan.numerics.sync_batchnorm.reason
    assert findings == []
    assert plan.history.identity["sync_batchnorm"] is True, (
        "another curve: not to be changed on resume"
    )
    plan, _ = solve("2x4090", trace=norm)
    assert plan.numerics.sync_batchnorm.value is False
    assert "sync_batchnorm" not in plan.history.identity, "runs from before go on"
    plan, findings = solve("1xt4", sync_batchnorm=True, trace=norm)
    assert plan.numerics.sync_batchnorm.value is False
    assert "one rank has nothing to synchronise" in plan.numerics.sync_batchnorm.reason
    assert findings == []


def test_a_model_without_batchnorm_ignores_the_wish(solve):
    plan, (finding,) = solve("2x4090", sync_batchnorm=True)
    assert plan.numerics.sync_batchnorm.value is False
    assert (finding.slug, finding.severity) == ("ignored-key", "warning")


def test_a_norm_with_a_forward_of_its_own_is_refused(solve):
    trace = {"has_batchnorm": True, "own_batchnorms": ["stem.norm"]}
    _, (finding,) = solve("2x4090", sync_batchnorm=True, trace=trace)
    assert (finding.slug, finding.severity) == ("own-batchnorm", "error")
    assert "stem.norm" in finding.what
    assert solve("2x4090", trace=trace)[1] == []


def test_one_sample_on_each_rank_is_enough_together(solve):
    keys = {"global_batch_size": 4, "micro_batch_size": 1, "devices": {"cpu": 2}}
    trace = {"has_batchnorm": True, "num_samples": 64}
    assert [f.slug for f in solve("cpu", trace=trace, **keys)[1]] == ["batchnorm-of-one"]
    assert solve("cpu", trace=trace, sync_batchnorm=True, **keys)[1] == []
    # 65 samples: the last one is alone.
    trace = {**trace, "num_samples": 65}
    (finding,) = solve("cpu", trace=trace, sync_batchnorm=True, **keys)[1]
    assert "the ranks together hold 1 sample" in finding.what


def test_out_of_memory_may_leave_one_sample_on_each_rank(solve):
    keys = {"global_batch_size": 8, "micro_batch_size": 2, "devices": {"cpu": 2}}
    trace = {"has_batchnorm": True, "num_samples": 64}
    assert halve_micro_batch(solve("cpu", trace=trace, **keys)[0]) is None
    plan = solve("cpu", trace=trace, sync_batchnorm=True, **keys)[0]
    assert halve_micro_batch(plan).batch.micro_batch_size.value == 1


def test_a_state_too_large_for_one_gpu_is_sharded(solve):
    # 40e9 bytes of fp32 weights; with gradients and AdamW's moments 160e9, on 80 GiB.
    large = {"parameters": 10**10, "trainable_parameters": 10**10, "parameter_bytes": 4 * 10**10}
    plan, _ = solve("8xa100", trace=large)
    assert chosen(plan) == ("fsdp", 8, "nccl")
    assert "ddp would need 149.0 GiB" in plan.parallel.strategy.reason
    assert "74 % of 80.0 GiB" in plan.parallel.strategy.reason
    plan, _ = solve("8xa100", trace=large, strategy="ddp")
    assert plan.parallel.strategy.value == "ddp", "a wish is a wish"
    plan, _ = solve("1xt4", trace=large)
    assert plan.parallel.strategy.value == "single"


ONE = {"devices": {"gpus": 1}}
KEPT = {"fsdp": {"offload": False}}


@pytest.mark.parametrize(
    ("gib", "keys", "expected"),
    [
        # 2 x 24 GiB of GPUs, 125 GiB of host; state is four times the weights.
        pytest.param(4, {}, ("ddp", None), id="ddp"),
        pytest.param(8, {}, ("fsdp", None), id="fsdp"),
        pytest.param(30, {}, ("fsdp", "state"), id="offload"),
        pytest.param(30, {"strategy": "fsdp"}, ("fsdp", "state"), id="offload-of-fsdp"),
        pytest.param(30, KEPT, ("fsdp", None), id="not-wanted"),
        pytest.param(30, {"strategy": "ddp"}, ("ddp", None), id="ddp-is-a-wish"),
        pytest.param(30, {"determinism": "exact"}, ("ddp", None), id="exact-has-one-way"),
        pytest.param(30, {"fsdp": {"shard_ranks": 1}}, ("fsdp", None), id="two-copies-on-a-host"),
        pytest.param(60, {}, ("fsdp", None), id="host-too-small"),
        pytest.param(4, ONE, ("single", None), id="one-gpu"),
        pytest.param(8, ONE, ("fsdp", "state"), id="one-gpu-offload"),
        pytest.param(8, {**ONE, "strategy": "fsdp"}, ("fsdp", "state"), id="one-gpu-fsdp"),
        pytest.param(8, {**ONE, "strategy": "single"}, ("single", None), id="single-is-a-wish"),
        pytest.param(8, {**ONE, **KEPT}, ("single", None), id="one-gpu-not-wanted"),
        pytest.param(60, ONE, ("single", None), id="one-gpu-host-too-small"),
        pytest.param(8, {**ONE, "fsdp": {"offload": True}}, ("fsdp", "state"), id="wanted"),
        pytest.param(4, {**ONE, "fsdp": {"offload": True}}, ("single", None), id="not-needed"),
    ],
)
def test_auto_takes_the_simplest_that_fits(solve, gib, keys, expected):
    plan, findings = solve("2x4090", trace=sizes(gib), global_batch_size=8, **keys)
    assert (plan.parallel.strategy.value, plan.parallel.offload.value) == expected
    fits = expected[1] is not None or gib == 4 or (gib == 8 and expected[0] == "fsdp")
    assert [f.slug for f in findings if f.severity == "error"] == ([] if fits else ["does-not-fit"])
    parts = predict_parts(plan)
    assert (parts.weights == parts.gradients == parts.optimizer == 0) == (expected[1] is not None)


def test_offload_says_what_was_needed_and_what_it_takes(solve):
    plan, _ = solve("2x4090", trace=sizes(30), global_batch_size=8)
    assert "ddp 120.0 GiB and fsdp 65.3 GiB are needed" in plan.parallel.strategy.reason
    assert "the smallest GPU has 24.0 GiB" in plan.parallel.strategy.reason
    assert "5.3 GiB are needed on a GPU instead of 65.3 GiB" in plan.parallel.offload.reason
    assert "120.0 GiB of 125.5 GiB host memory" in plan.parallel.offload.reason
    assert [(o.choice, o.why_not.split(",")[0]) for o in plan.predicted.alternatives[:2]] == [
        ("strategy=ddp", "120.0 GiB"),
        ("fsdp.offload=false", "65.3 GiB"),
    ]
    plan, _ = solve("2x4090", trace=sizes(8), global_batch_size=8, **ONE)
    assert "single 32.0 GiB are needed" in plan.parallel.strategy.reason
    assert [other.choice for other in plan.predicted.alternatives[:1]] == ["strategy=single"]


def test_offload_does_not_help_where_activations_are_too_much(solve):
    large = sizes(30, per_sample=15 * GIB, checkpointed=GIB)
    plan, _ = solve("2x4090", trace=large, global_batch_size=8, precision="bf16")
    assert plan.parallel.offload.value == "state"
    large = sizes(30, per_sample=20 * GIB, checkpointed=GIB)
    plan, findings = solve("2x4090", trace=large, global_batch_size=8, precision="bf16", **OFF)
    assert (plan.parallel.strategy.value, plan.parallel.offload.value) == ("fsdp", None)
    assert [f.slug for f in findings if f.severity == "error"] == ["does-not-fit"]
