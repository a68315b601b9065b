"""Where `compile: on` is left off, and why."""

import pytest


def test_compile_is_off_unless_asked_for(solve):
    plan, _ = solve("cpu")
    assert plan.compile.value == "off"
    plan, findings = solve("8xa100", compile="on")
    assert plan.compile.value == "on"
    assert not [finding for finding in findings if "compile" in finding.slug]


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
    assert plan.compile.value == "off" and said in plan.compile.reason
    (finding,) = (finding for finding in findings if finding.slug == "compile-left-off")
    assert finding.severity == "warning" and "compile=off" in finding.fix


def test_no_c_compiler_no_compiled_code(make_job, make_trace, load_machine):
    from dataclasses import replace

    from phalanx.planner.solve import solve_plan

    machine = replace(load_machine("cpu"), c_compiler=None)
    plan, findings = solve_plan(make_job(compile="on"), machine, make_trace())
    assert plan.compile.value == "off"
    assert "C compiler" in next(f for f in findings if f.slug == "compile-left-off").what
