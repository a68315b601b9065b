"""Of what fits with room to spare, the fastest micro-batch is taken and not the largest."""

import json

import pytest

from phalanx.codec import from_json
from phalanx.job import load_job
from phalanx.machine import parse_machine
from phalanx.planner.choices.micro_batch import choose_micro_batch
from phalanx.planner.memory.budget import PROCESS_SPREAD
from phalanx.planner.revise import halve_micro_batch
from phalanx.planner.schema.footprint import Line
from phalanx.planner.schema.trace import Trace
from phalanx.planner.solve import solve_plan
from tests.unit.planner.test_guides import TRACES

GIB = 2**30
# Tensors may have 16.4 of the 24 GiB of one 4090 of two: half a GiB a sample, a quarter recomputed.
TRACE = {
    "activation_bytes": {"bf16": [Line(0, GIB // 2)]},
    "checkpointed_bytes": {"bf16": [Line(0, GIB // 4)]},
    "num_blocks": 12,
    "num_samples": 100_000,
    "fetch_s": 1e-9,
}


class Speed:
    """A forecast of which only the speed is looked at."""

    def __init__(self, samples_per_s):
        self.samples_per_s = samples_per_s


@pytest.fixture
def choose(solve, make_job):
    """The plan for 2x 4090 when `rate` gives the samples per second of (micro-batch,
    checkpointing)."""

    def choose(rate, *, batch=128, trace=None, **keys):
        keys = {"global_batch_size": batch, **keys}
        plan, _ = solve("2x4090", trace={**TRACE, **(trace or {})}, **keys)
        plan = plan.replace(alternatives=[])

        def predict(plan):
            found = rate(
                plan.batch.micro_batch_size.value, plan.execution.activation_checkpointing.value
            )
            return Speed(found) if found is not None else None

        chosen, _ = choose_micro_batch(make_job(**keys), plan, None, predict)
        return chosen

    return choose


def sizes(plan):
    return plan.batch.micro_batch_size.value, plan.execution.activation_checkpointing.value


def test_a_large_micro_batch_that_is_slower_is_not_taken(choose):
    plan = choose(lambda micro, is_checkpointed: {8: 1000, 32: 500}.get(micro, 100))
    assert sizes(plan) == (8, False)
    assert plan.batch.accumulation.value == 8  # 128 over 2 ranks: the global batch stays
    assert "the fastest" in plan.batch.micro_batch_size.reason
    lost = {other.choice: other.why_not for other in plan.predicted.alternatives}
    assert lost["micro_batch_size=32 activation_checkpointing=off"] == "50 % slower"


def test_what_is_hardly_slower_and_simpler_is_taken(choose):
    plan = choose(lambda micro, is_checkpointed: {32: 980, 8: 1000}.get(micro, 100))
    assert sizes(plan) == (32, False)
    assert "within 3 % of the fastest (micro_batch_size=8" in plan.batch.micro_batch_size.reason
    # Recomputing costs nothing in memory that is needed: not taken for nothing.
    assert sizes(choose(lambda micro, is_checkpointed: 1000 + 10 * is_checkpointed))[1] is False


def test_recomputing_is_taken_where_it_is_faster_by_far(choose):
    plan = choose(lambda micro, is_checkpointed: 1000 if is_checkpointed and micro == 64 else 500)
    assert sizes(plan) == (64, True)


def test_only_what_fits_with_the_margin_is_considered(choose):
    asked = []

    def rate(micro, is_checkpointed):
        asked.append((micro, is_checkpointed))
        return 10 * micro

    plan = choose(rate, activation_checkpointing="off")
    assert sizes(plan) == (32, False)  # 64 would take 32 GiB
    assert (1 + PROCESS_SPREAD) * plan.predicted.process_bytes.value <= plan.devices.device_bytes
    assert max(micro for micro, _ in asked) == 32, "what does not fit needs no forecast"
    nearly = plan.predicted.alternatives[-1]
    assert nearly.choice.startswith("micro_batch_size=64 ")
    assert "more than 68 % of 24.0 GiB" in nearly.why_not
    # 21 GiB fit the card and not the margin.
    close = choose(rate, batch=84, activation_checkpointing="off")
    assert close.batch.micro_batch_size.value < 42


def test_batchnorm_keeps_the_largest_that_fits(choose):
    plan = choose(
        lambda micro, is_checkpointed: 1000 if micro == 8 else 1, trace={"has_batchnorm": True}
    )
    assert sizes(plan) == (32, False)
    assert "BatchNorm is per micro-batch" in plan.batch.micro_batch_size.reason


def test_without_a_prediction_the_largest_that_fits_is_taken(choose):
    plan = choose(lambda micro, is_checkpointed: None)
    assert sizes(plan) == (32, False)
    assert "speed is not predicted" in plan.batch.micro_batch_size.reason


def test_where_nothing_fits_the_least_is_taken_and_said(choose):
    heavy = {"bf16": [Line(0, 40 * GIB)]}
    plan = choose(
        lambda micro, is_checkpointed: 1000,
        trace={"activation_bytes": heavy, "checkpointed_bytes": {"bf16": [Line(0, 30 * GIB)]}},
    )
    assert sizes(plan) == (1, True)
    assert "nothing fits in 68 % of 24.0 GiB" in plan.batch.micro_batch_size.reason


def test_a_stated_size_is_left_alone(choose):
    assert (
        choose(lambda micro, _: 1000 / micro, micro_batch_size=16).batch.micro_batch_size.value
        == 16
    )


def may_hold(plan):
    """The upper end of what a process is predicted to hold, as a share of its card."""
    return (1 + PROCESS_SPREAD) * plan.predicted.process_bytes.value / plan.devices.device_bytes


@pytest.mark.parametrize("batch", [32, 100, 256, 1024])
@pytest.mark.parametrize(
    "machine", ["T4", "RTX 2080", "RTX 4090", "2x RTX 3090", "A100-40", "A100-80", "8x A100-80"]
)
@pytest.mark.parametrize("model", ["BevPlanner60M", "Dense340M", "SeeingPolicy", "Yolo11n"])
def test_whatever_is_chosen_is_there_even_at_the_upper_end(model, machine, batch):
    trace = from_json(Trace, json.loads((TRACES / f"{model}.json").read_text()))
    job = load_job({"recipe": "guide.py:Guide", "steps": 100, "global_batch_size": batch}).job
    plan, findings = solve_plan(job, parse_machine(machine), trace)
    slugs = {finding.slug for finding in findings}
    if not {"memory-tight", "does-not-fit"} & slugs:
        assert may_hold(plan) <= 1
    else:
        assert plan.batch.micro_batch_size.value <= 2 and may_hold(plan) > 0.97


def test_a_cut_after_memory_ran_out_goes_on_until_it_fits(solve):
    keys = {"micro_batch_size": 128, "precision": "bf16", "activation_checkpointing": "off"}
    plan, _ = solve("2x4090", trace=TRACE, global_batch_size=256, **keys)
    assert (plan.batch.micro_batch_size.value, may_hold(plan) > 2) == (128, True)
    cut = halve_micro_batch(plan)
    assert (cut.batch.micro_batch_size.value, may_hold(cut) < 1) == (32, True), "64 would not fit"
    assert halve_micro_batch(cut).batch.micro_batch_size.value == 16, "what was sure was not enough"
