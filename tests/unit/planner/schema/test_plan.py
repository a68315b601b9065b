"""The Plan as a file: it survives JSON, and its digest sees every change."""

import json
from dataclasses import fields, replace

import pytest

from phalanx.planner.schema.footprint import Line
from phalanx.planner.schema.plan import Decision, Plan


def other(value):
    """A value of the same kind that is not the same."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, list):
        return [*value, 99]
    if isinstance(value, dict):
        return {**value, "another": "x"}
    return 12345 if value is None else value + 1


@pytest.mark.parametrize("machine", ["cpu", "8xa100"])
def test_a_plan_survives_json(solve, machine):
    plan, _ = solve(machine, checkpoint={"every": "10 minutes"})
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_a_plan_from_before_averages_is_read(solve):
    record = solve("cpu")[0].to_json()
    del record["ema"]
    assert Plan.from_json(record).ema.value is None


@pytest.mark.parametrize("name", [f.name for f in fields(Plan)])
def test_the_digest_changes_with_any_value(solve, name):
    plan, _ = solve()
    value = getattr(plan, name)
    if isinstance(value, Decision):
        changed = Decision(other(value.value), value.reason)
    elif name == "resume_from":
        changed = "runs/x"
    elif name == "footprint":
        changed = replace(value, kept=[Line(1, 2)])
    else:
        changed = other(value)
    assert replace(plan, **{name: changed}).digest() != plan.digest()


def test_the_digest_is_the_same_for_the_same_plan(solve):
    plan, _ = solve()
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))).digest() == plan.digest()


def test_another_schema_version_is_refused(solve):
    record = solve()[0].to_json() | {"schema_version": 99}
    with pytest.raises(ValueError, match="99"):
        Plan.from_json(record)


def test_fields_of_a_later_version_are_passed_over(solve):
    plan, _ = solve()
    assert Plan.from_json(plan.to_json() | {"later": {"value": 1, "reason": "x"}}) == plan


def test_decisions_are_all_fields_with_a_reason(solve):
    plan, _ = solve()
    decisions = plan.decisions()
    assert {"device", "ranks", "lr", "global_batch_size", "workers"} <= set(decisions)
    assert "identity" not in decisions
    assert "revision" not in decisions


def test_the_batch_of_a_plan_is_made_of_its_sizes(solve):
    plan, _ = solve()
    batch = plan.batch
    assert batch.num_samples == plan.num_samples.value
    assert batch.global_batch_size == plan.global_batch_size.value
    assert batch.micro_batch_size == plan.micro_batch_size.value
