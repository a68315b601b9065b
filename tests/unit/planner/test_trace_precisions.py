"""A recipe is traced only in the precisions that its plan can need."""

from dataclasses import replace

from phalanx.planner.trace_precisions import wanted_on, wanted_precisions

COMPILED_HALF = ("bf16", "bf16+compiled")


def test_only_what_may_be_needed_is_traced(make_job):
    on_cpu = {"devices": {"cpu": 2}}
    for settings, accelerator, wanted in (
        ({}, "cuda", COMPILED_HALF),
        ({"precision": "fp16"}, "cuda", COMPILED_HALF),
        ({"precision": "tf32"}, "cuda", ("fp32", "bf16", "fp32+compiled")),
        ({"fast": "off"}, "cuda", ("bf16",)),
        ({**on_cpu}, "cuda", ("fp32",)),
        ({}, "cpu", ("fp32",)),
        ({"precision": "bf16"}, "cpu", ("bf16",)),
        ({}, "mps", ("fp32", "bf16")),
        ({"fast": "off", "compile": "on"}, "cpu", ("fp32", "fp32+compiled", "bf16+compiled")),
    ):
        assert wanted_precisions(make_job(**settings), accelerator=accelerator) == wanted, settings


def test_a_card_that_does_not_tell_what_it_can_may_need_both(make_job, load_machine):
    machine = load_machine("8xa100")
    assert wanted_on(make_job(), machine) == COMPILED_HALF
    odd = [replace(gpu, compute_capability=None) for gpu in machine.gpus]
    assert wanted_on(make_job(fast="off"), replace(machine, gpus=odd)) == ("fp32", "bf16")
