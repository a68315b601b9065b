"""Who holds which part of the model."""

import pytest

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
