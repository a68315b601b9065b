"""What a rank needs memory for, and when activations are recomputed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.planner.memory.prediction import predict_parts
from phalanx.planner.schema.footprint import Line, upper_lines
from phalanx.planner.schema.trace import Weight

MIB = 2**20
GIB = 2**30
STEPS = 50 * 4  # AdamW's count of steps, for each parameter that learns
TRACE = {
    "num_blocks": 12,
    "parameters": 100 * MIB,
    "trainable_parameters": 25 * MIB,
    "parameter_bytes": 400 * MIB,
    "trainable_bytes": 100 * MIB,
    "weights": [Weight((512, 1024), 4)] * 50 + [Weight((75, 2**20), 4, False, None)],
    "input_bytes": MIB,
    "activation_bytes": {"fp32": [Line(0, 2 * GIB)], "bf16": [Line(GIB, GIB)]},
    "checkpointed_bytes": {"fp32": [Line(0, GIB)], "bf16": [Line(GIB, 0), Line(0, GIB // 4)]},
}


@pytest.mark.parametrize(("asked", "is_on"), [("on", True), (True, True), ("off", False)])
def test_activations_are_recomputed_when_asked(solve, asked, is_on):
    plan, findings = solve("cpu", activation_checkpointing=asked, trace={"num_blocks": 12})
    assert plan.execution.activation_checkpointing.value is is_on
    assert "12 blocks" in plan.execution.activation_checkpointing.reason
    assert findings == []


def test_a_model_without_blocks_is_a_finding_when_asked(solve):
    plan, (finding,) = solve("cpu", activation_checkpointing="on")
    assert plan.execution.activation_checkpointing.value is False
    assert (finding.slug, finding.severity) == ("no-blocks", "warning")
    assert "blocks(self, model)" in finding.fix
    plan, findings = solve("cpu", activation_checkpointing="auto")
    assert "no repeated part" in plan.execution.activation_checkpointing.reason
    assert findings == []


@pytest.mark.parametrize(
    ("micro", "is_on", "says"),
    [
        # 2 x 4090 with 24 GiB, of which 16.4 are left by the context, NCCL, what fragments and how
        # far the prediction may be off: 1 GiB, 1 GiB a sample and 0.7 of the rest.
        (14, False, "15.7 GiB without it, which is within 68 % of 24.0 GiB"),
        (15, True, "16.7 GiB without it, more than 68 % of 24.0 GiB; 4.5 GiB with it"),
    ],
)
def test_auto_goes_by_the_prediction(solve, micro, is_on, says):
    keys = {"global_batch_size": 2 * micro, "micro_batch_size": micro, "trace": TRACE}
    plan, _ = solve("2x4090", **keys)
    assert plan.execution.activation_checkpointing.value is is_on
    assert says in plan.execution.activation_checkpointing.reason
    assert plan.execution.may_recompute
    cpu, _ = solve("cpu", **keys)
    assert cpu.execution.activation_checkpointing.value is False, "CPU memory is not watched"


def test_memory_is_predicted_by_part(solve):
    keys = {"global_batch_size": 16, "micro_batch_size": 4, "ema": {"decay": 0.9}, "trace": TRACE}
    plan, _ = solve("2x4090", precision="bf16", **keys)
    parts = predict_parts(plan)
    # Frozen weights have no gradient, no moments and no average; 8 samples a step and 8 ahead.
    cublas = 2 * (8 * MIB + 128 * 2**10)  # before Hopper, for forward's thread and backward's
    moments = 200 * MIB + STEPS
    assert parts == (400 * MIB, 100 * MIB, moments, 100 * MIB, 0, cublas, 16 * MIB, 5 * GIB)
    assert plan.predicted.memory_bytes.value == parts.total == 816 * MIB + STEPS + 5 * GIB + cublas
    for text in ("weights 400.0 MiB", "activations 5.0 GiB", "micro-batch 4", "24 % of 24.0 GiB"):
        assert text in plan.predicted.memory_bytes.reason
    assert predict_parts(plan, is_checkpointed=True).activations == GIB
    off = {"activation_checkpointing": "off"}
    plan, _ = solve("2x4090", precision="fp64", optimizer={"name": "sgd"}, **off, **keys)
    assert predict_parts(plan)[:4] == (800 * MIB, 200 * MIB, 200 * MIB, 200 * MIB)
    assert predict_parts(plan).activations == 16 * GIB


def test_in_one_pass_gradients_come_while_activations_go(solve):
    both = {"fp16": [], "bf16+gradients": [Line(50 * MIB, GIB)], "bf16": [Line(0, GIB)]}
    trace = {**TRACE, "activation_bytes": both}
    keys = {"precision": "bf16", "trace": trace, "devices": {"gpus": 1}, "global_batch_size": 4}
    one, _ = solve("2x4090", micro_batch_size=4, **keys)
    assert predict_parts(one).activations == 4 * GIB + 50 * MIB - 100 * MIB
    two, _ = solve("2x4090", micro_batch_size=2, **keys)
    assert predict_parts(two).activations == 2 * GIB, "they are there from the first pass on"
    many, _ = solve("2x4090", **{**keys, "devices": {"gpus": 2}, "global_batch_size": 8})
    assert predict_parts(many).activations == 4 * GIB, "DDP makes room for them beforehand"


def test_shards_are_predicted_with_what_is_gathered(solve):
    trace = {**TRACE, "largest_block_bytes": 20 * MIB, "outside_bytes": 40 * MIB}
    keys = {"global_batch_size": 16, "micro_batch_size": 4, "trace": trace, "strategy": "fsdp"}
    # Two blocks and the rest in 16 bits, and a block's gradients in 16 and in 32. 75 frozen rows
    # are 38 on the first rank, and padded to 38 on the other.
    weights = (50 * 2 + 38 * 4) * MIB - 50 * MIB
    held = (weights, 50 * MIB, 100 * MIB + STEPS, 0, 70 * MIB)
    parts = predict_parts(solve("2x4090", **keys)[0])
    assert parts[:5] == held
    assert parts.activations == 5 * GIB - 200 * MIB, "no copies of the weights in 16 bits"
    parts = predict_parts(solve("2x4090", fsdp={"offload": True}, **keys)[0])
    assert parts[:5] == (0, 0, 0, 0, 70 * MIB)
    parts = predict_parts(solve("2x4090", fsdp={"reshard_after_forward": False}, **keys)[0])
    assert parts.gathered == 240 * MIB


@pytest.mark.parametrize(
    ("most", "one_pass", "two_passes"),
    [
        # The most activations are there before any gradient is: only those of two passes count.
        pytest.param((0, GIB), (40, 4096 - 50), (40, 4096), id="at-the-loss"),
        # 100 MiB of gradients at the peak: half of them are kept here, 30 MiB are on their way.
        pytest.param((100 * MIB, GIB), (70, 4096), (70, 4096), id="later"),
        # Where all the gradients are outside of blocks, they meet at the end.
        pytest.param((0, 0), (1500, 0), (1500, 0), id="outside"),
    ],
)
def test_shards_of_gradients_come_while_activations_go(solve, most, one_pass, two_passes):
    alone = GIB if most[1] else 0
    lines = {"bf16": [Line(200 * MIB, alone)]}
    lines["bf16+gradients"] = [Line(most[0] + 200 * MIB, alone)]
    outside = 40 * MIB if alone else 1000 * MIB
    trace = {**TRACE, "largest_block_bytes": 20 * MIB, "activation_bytes": lines}
    trace |= {"outside_bytes": outside, "checkpointed_bytes": {}}
    for passes, expected in ((1, one_pass), (2, two_passes)):
        keys = {"global_batch_size": 8 * passes, "micro_batch_size": 4, "strategy": "fsdp"}
        parts = predict_parts(solve("2x4090", precision="bf16", trace=trace, **keys)[0])
        assert (parts.gathered, parts.activations) == tuple(size * MIB for size in expected)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # Weights and gradients in 16 bits; fp32 weights and two moments of what learns.
        ({"stage": 1}, (200, 50, 150, 0, 200)),
        ({"stage": 2}, (200, 25, 150, 0, 200)),
        ({"stage": 3}, (100, 25, 150, 0, 240)),  # and two blocks and the rest, in 16 bits
        ({"stage": 2, "offload_optimizer": True}, (200, 25, 0, 0, 200)),
    ],
)
def test_zero_is_predicted_by_stage(solve, settings, expected):
    trace = {**TRACE, "largest_block_bytes": 20 * MIB, "outside_bytes": 40 * MIB}
    keys = {"global_batch_size": 16, "micro_batch_size": 4, "trace": trace, "precision": "bf16"}
    plan, _ = solve("2x4090", strategy="deepspeed", deepspeed=settings, **keys)
    weights, gradients, optimizer, *others = (size * MIB for size in expected)
    steps = 4 if optimizer else 0  # one flat tensor
    assert predict_parts(plan)[:5] == (weights, gradients, optimizer + steps, *others)


def test_exact_keeps_gradients_for_each_level_of_the_tree(solve):
    keys = {"global_batch_size": 8, "micro_batch_size": 1, "devices": {"cpu": 2}, "trace": TRACE}
    plan, _ = solve("cpu", determinism="exact", **keys)  # 4 slots on each rank
    assert predict_parts(plan).gradients == 5 * 100 * MIB


def test_unknown_activations_are_said(solve):
    plan, _ = solve("2x4090", trace={"num_blocks": 3, "activations_unknown": "it calls .item()"})
    assert "activations are not counted: it calls .item()" in plan.predicted.memory_bytes.reason
    assert "could not be predicted" in plan.execution.activation_checkpointing.reason


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=12))
def test_hidden_lines_are_left_out_and_none_else(pairs):
    lines = [Line(*pair) for pair in pairs]
    upper = upper_lines(lines)
    for samples in range(1, 120):
        assert max(line.at(samples) for line in upper) == max(line.at(samples) for line in lines)
    assert len(upper) == len(set(upper))
    assert set(upper) <= set(lines)


def test_a_plan_says_that_values_of_real_samples_were_looked_at(solve):
    plan, findings = solve("2x4090", trace={**TRACE, "activations_sampled": "it calls .item()"})
    assert findings == []
    assert (
        "run with the values of real samples: it calls .item()"
        in plan.predicted.memory_bytes.reason
    )
