"""Who holds which part of the model."""

import pytest

from phalanx.planner.revise import halve_micro_batch

GIB = 2**30


def chosen(plan):
    return plan.strategy.value, plan.shard_ranks.value, plan.backend.value


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


def test_ranks_that_cannot_be_grouped(solve):
    _, findings = solve("8xa100", strategy="fsdp", fsdp={"shard_ranks": 3})
    (finding,) = findings
    assert (finding.slug, finding.severity) == ("fsdp-shard-ranks", "error")
    assert "fsdp.shard_ranks = 3; 8 ranks" in finding.why
    assert finding.fix == "fsdp.shard_ranks=2"


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
    assert plan.build.value == expected
    if expected == "parts" and "fsdp" not in changes:
        assert "8 ranks x 200.0 GiB" in plan.build.reason


def test_batchnorm_is_synchronised_on_request(solve):
    norm = {"has_batchnorm": True}
    plan, findings = solve("2x4090", sync_batchnorm=True, trace=norm)
    assert plan.sync_batchnorm.value is True
    assert "2 ranks" in plan.sync_batchnorm.reason
    assert findings == []
    assert plan.identity["sync_batchnorm"] is True, "another curve: not to be changed on resume"
    plan, _ = solve("2x4090", trace=norm)
    assert plan.sync_batchnorm.value is False
    assert "sync_batchnorm" not in plan.identity, "runs from before go on"
    plan, findings = solve("1xt4", sync_batchnorm=True, trace=norm)
    assert plan.sync_batchnorm.value is False
    assert "one rank has nothing to synchronise" in plan.sync_batchnorm.reason
    assert findings == []


def test_a_model_without_batchnorm_ignores_the_wish(solve):
    plan, (finding,) = solve("2x4090", sync_batchnorm=True)
    assert plan.sync_batchnorm.value is False
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
    assert halve_micro_batch(plan).micro_batch_size.value == 1


def test_a_state_too_large_for_one_gpu_is_sharded(solve):
    # 40e9 bytes of fp32 weights; with gradients and AdamW's moments 160e9, on 80 GiB.
    large = {"parameters": 10**10, "trainable_parameters": 10**10, "parameter_bytes": 4 * 10**10}
    plan, _ = solve("8xa100", trace=large)
    assert chosen(plan) == ("fsdp", 8, "nccl")
    assert "ddp would need 149.0 GiB" in plan.strategy.reason
    assert "85 % of 80.0 GiB" in plan.strategy.reason
    plan, _ = solve("8xa100", trace=large, strategy="ddp")
    assert plan.strategy.value == "ddp", "a wish is a wish"
    plan, _ = solve("1xt4", trace=large)
    assert plan.strategy.value == "single"
