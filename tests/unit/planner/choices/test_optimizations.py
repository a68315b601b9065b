"""Which rungs of speed a plan takes, with both numbers; what is forced wins over `fast: off`."""

import pytest

from phalanx.planner.choices.optimizations import channels_last_pays
from phalanx.planner.schema.footprint import Line
from phalanx.planner.schema.operators import Operator
from phalanx.planner.time.compile_gain import as_compiled, compile_seconds

SMALL = Operator("memory", "forward", "half", 600, Line(0, 0), Line(0, 1000))
LINES = {"bf16": [Line(0, 1000)], "bf16+compiled": [Line(0, 500)]}
KNOWN = {
    "num_samples": 6400,
    "activation_bytes": LINES,
    "operators": {"bf16": [SMALL], "bf16+compiled": [as_compiled(SMALL._replace(times=60))]},
}
ONE = {"devices": {"gpus": 1}, "cuda_graph": "off"}
RUNGS = ("compile", "channels_last", "cuda_graph")


def test_a_job_is_compiled_when_that_is_repaid(solve, make_trace):
    """600 operators on one GPU: 9 ms of a step less, 32 s to compile all of them."""
    long, _ = solve("8xa100", trace=KNOWN, steps=100_000, **ONE)
    assert long.execution.compile.value == "on" and "100,000 steps" in long.execution.compile.reason
    (other,) = (entry for entry in long.predicted.alternatives if entry.choice == "compile=off")
    assert other.samples_per_s < long.predicted.samples_per_s.value
    short, _ = solve("8xa100", trace=KNOWN, steps=100, **ONE)
    assert short.execution.compile.value == "off" and "too short" in short.execution.compile.reason
    assert "32" in short.execution.compile.reason and "saved" in short.execution.compile.reason
    assert compile_seconds(make_trace(**KNOWN)) == pytest.approx(2 + 0.05 * 600)
    in_blocks = make_trace(**KNOWN, num_blocks=30, block_kinds=1)
    assert compile_seconds(in_blocks) == pytest.approx(2 + 0.05 * 600 * 2 / 30)
    block_by_block, _ = solve(
        "8xa100", trace={**KNOWN, "num_blocks": 30, "block_kinds": 1}, steps=1000, **ONE
    )
    assert block_by_block.execution.compile.value == "on"


@pytest.mark.parametrize(
    ("facts", "keys", "said"),
    [
        ({"compiled_unknown": "no such operator"}, {}, "no such operator"),
        ({"operators": {"bf16": [SMALL]}}, {}, "not traced"),
        ({}, {"determinism": "exact"}, "exact"),
        ({"varying_shapes": "[2, 5] and [2, 7]"}, {"determinism": "resume"}, "[2, 7]"),
        ({}, {"fast": "off"}, "fast = off"),
    ],
)
def test_what_nobody_asked_for_is_left_off_without_a_finding(solve, facts, keys, said):
    plan, findings = solve("8xa100", trace={**KNOWN, **facts}, steps=100_000, **{**ONE, **keys})
    assert plan.execution.compile.value == "off" and said in plan.execution.compile.reason
    assert "compile-left-off" not in {finding.slug for finding in findings}


def test_a_run_that_goes_on_keeps_its_rungs(solve):
    keys = {"trace": {**KNOWN, "convolutions": 50}, "devices": {"gpus": 1}, "steps": 100_000}
    first, _ = solve("8xa100", **keys)
    assert [getattr(first.execution, name).value for name in RUNGS] == ["on"] * 3
    again, _ = solve("8xa100", previous=first, **{**keys, "steps": 100})
    assert [getattr(again.execution, name).value for name in RUNGS] == ["on"] * 3
    assert again.execution.compile.reason == f"kept from the run: {first.execution.compile.reason}"
    slow, _ = solve("8xa100", previous=first, **keys, fast="off")
    assert [getattr(slow.execution, name).value for name in RUNGS] == ["off"] * 3
    assert (
        not slow.execution.compared_with_eager.value and first.execution.compared_with_eager.value
    )
    later, _ = solve("8xa100", previous=slow, **keys)
    assert [getattr(later.execution, name).value for name in RUNGS] == ["off"] * 3


def test_a_forced_rung_wins_over_fast_off(solve):
    forced = dict.fromkeys(RUNGS, "on")
    keys = {"trace": KNOWN, "devices": {"gpus": 1}, "fast": "off"}
    plan, findings = solve("8xa100", **keys, **forced)
    assert [getattr(plan.execution, name).value for name in RUNGS] == ["on"] * 3
    assert "rung-left-off" not in {finding.slug for finding in findings}
    several, findings = solve("8xa100", trace=KNOWN, **forced, strategy="fsdp")
    assert several.execution.compile.value == "on"
    assert several.execution.channels_last.value == several.execution.cuda_graph.value == "off"
    left = [finding for finding in findings if finding.slug == "rung-left-off"]
    assert len(left) == 2 and all(finding.severity == "warning" for finding in left)


@pytest.mark.parametrize(
    ("facts", "keys", "said"),
    [
        ({}, {"devices": {"gpus": 2}}, "2 ranks"),
        ({"activations_sampled": "item() of a loss"}, {}, "item()"),
        ({"varying_shapes": "[2, 5] and [2, 7]"}, {}, "[2, 7]"),
        ({}, {"determinism": "exact"}, "exact"),
    ],
)
def test_steps_that_are_not_alike_are_no_graph(solve, facts, keys, said):
    keys = {"devices": {"gpus": 1}, **keys}
    plan, _ = solve("8xa100", trace={**KNOWN, **facts}, **keys)
    assert plan.execution.cuda_graph.value == "off" and said in plan.execution.cuda_graph.reason


def test_convolutions_on_tensor_cores_have_channels_last(solve):
    assert channels_last_pays(53, "bf16") and channels_last_pays(53, "tf32")
    assert not channels_last_pays(53, "fp32") and not channels_last_pays(1, "bf16")
    plan, _ = solve("8xa100", trace={**KNOWN, "convolutions": 53})
    assert (
        plan.execution.channels_last.value == "on" and "53" in plan.execution.channels_last.reason
    )
    plan, _ = solve("cpu", trace={**KNOWN, "convolutions": 53})
    assert plan.execution.channels_last.value == "off"


def test_a_graph_leaves_room_for_evaluation(solve):
    """80 GB, 50 of them activations: a graph keeps those, and evaluation needs its own."""
    keys = {"devices": {"gpus": 1}, "global_batch_size": 64, "micro_batch_size": 64}
    large = {"activation_bytes": {"bf16": [Line(0, 50 * 10**9 // 64)]}}
    plan, _ = solve("8xa100", trace={**KNOWN, **large}, **keys)
    assert (
        plan.execution.cuda_graph.value == "off"
        and "for evaluation" in plan.execution.cuda_graph.reason
    )
    small = {"activation_bytes": {"bf16": [Line(0, 20 * 10**9 // 64)]}}
    plan, _ = solve("8xa100", trace={**KNOWN, **small}, **keys)
    assert plan.execution.cuda_graph.value == "on"


def test_cudnn_searches_where_that_is_repaid(solve):
    keys = {"devices": {"gpus": 1}, "precision": "tf32", "steps": 100_000}
    facts = {**KNOWN, "operators": {"fp32": [SMALL]}, "convolutions": 20}
    long, _ = solve("8xa100", trace=facts, **keys)
    assert (
        long.execution.cudnn_search.value == "on"
        and "20 s of" in long.execution.cudnn_search.reason
    )
    for other in (
        {"steps": 100},
        {"precision": "bf16"},
        {"determinism": "resume"},
        {"fast": "off"},
    ):
        plan, _ = solve("8xa100", trace=facts, **{**keys, **other})
        assert plan.execution.cudnn_search.value == "off", other
