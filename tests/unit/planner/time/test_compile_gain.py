"""Where `compile: on` is left off, and why."""

from dataclasses import replace

import pytest

from phalanx.planner.memory.prediction import predict_parts
from phalanx.planner.schema.footprint import Line
from phalanx.planner.schema.operators import Operator, Shape
from phalanx.planner.solve import solve_plan
from phalanx.planner.time.compile_gain import as_compiled
from phalanx.planner.time.rates import HOST_STEP_S


def test_compile_is_off_on_cpu_unless_asked_for(solve):
    plan, findings = solve("cpu")
    assert plan.execution.compile.value == "off" and "on CPU" in plan.execution.compile.reason
    assert "compile-left-off" not in {finding.slug for finding in findings}
    plan, _ = solve("cpu", compile="on")
    assert plan.execution.compile.value == "on"
    plan, findings = solve("8xa100", compile="on")
    assert plan.execution.compile.value == "on"
    assert "compile-left-off" not in {finding.slug for finding in findings}


@pytest.mark.parametrize(
    ("machine", "keys", "said"),
    [
        ("8xa100", {"strategy": "deepspeed"}, "DeepSpeed"),
        (
            "8xa100",
            {"sync_batchnorm": True, "trace": {"has_batchnorm": True}},
            "sync_batchnorm = true",
        ),
        ("mps", {}, "MPS"),
    ],
)
def test_what_cannot_be_compiled_is_left_off_with_a_reason(solve, machine, keys, said):
    plan, findings = solve(machine, compile="on", **keys)
    assert plan.execution.compile.value == "off" and said in plan.execution.compile.reason
    (finding,) = (finding for finding in findings if finding.slug == "compile-left-off")
    assert finding.severity == "warning" and "compile=off" in finding.fix


def test_no_c_compiler_no_compiled_code(make_job, make_trace, load_machine):
    machine = replace(load_machine("cpu"), c_compiler=None)
    plan, findings = solve_plan(make_job(compile="on"), machine, make_trace())
    assert plan.execution.compile.value == "off"
    assert "C compiler" in next(f for f in findings if f.slug == "compile-left-off").what


def test_a_compiled_plan_is_predicted_from_compiled_code(solve):
    """Other activations, other operators, and a tenth of the host's time for them."""
    eager = {"bf16": [Line(0, 100 * 2**20)]}
    many = [Operator("memory", "forward", "half", 500, Line(0, 0), Line(0, 1000))]
    shape = Shape(Line(64, 0), Line(0, 9), Line(1, 0), Line(9, 0))
    one = Line(0, 1000)
    many.append(Operator("product", "forward", "half", 1, one, one, shape, "convolution"))
    few = [as_compiled(operator) for operator in many]
    trace = {
        "activation_bytes": {**eager, "bf16+compiled": [Line(0, 10 * 2**20)]},
        "operators": {"bf16": many, "bf16+compiled": few},
    }
    keys = {"precision": "bf16", "micro_batch_size": 8, "devices": {"gpus": 1}, "cuda_graph": "off"}
    plain, _ = solve("8xa100", trace=trace, compile="off", **keys)
    compiled, findings = solve("8xa100", trace=trace, compile="on", **keys)
    assert predict_parts(plain).activations == 8 * 100 * 2**20
    assert predict_parts(compiled).activations == 8 * 10 * 2**20
    assert plain.execution.cuda_graph.value == compiled.execution.cuda_graph.value == "off"
    operators = [plan.predicted.forecast.host_s - HOST_STEP_S for plan in (plain, compiled)]
    assert operators[1] == pytest.approx(operators[0] / 10)
    assert "compiled-unknown" not in {finding.slug for finding in findings}
    _, findings = solve("8xa100", trace={**trace, "activation_bytes": eager}, compile="on", **keys)
    assert "compiled-unknown" in {finding.slug for finding in findings}
