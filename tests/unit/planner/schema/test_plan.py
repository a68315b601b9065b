"""The Plan as a file: it survives JSON, its digest sees every change, and older files are read."""

import json
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import pytest

from phalanx.planner.schema.footprint import Line
from phalanx.planner.schema.forecast import Forecast
from phalanx.planner.schema.plan import Alternative, Decision, Plan, _field_sections

GOLDEN = Path(__file__).parents[3] / "golden"


def other(value):
    """A value of the same kind that is not the same."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, list):
        return [*value, 99]
    if isinstance(value, dict):
        return {**value, "another": 1 if None in value.values() else "x"}
    return 12345 if value is None else value + 1


def alternative():
    return Alternative(choice="compile=off", samples_per_s=1.5, memory_bytes=None, why_not="slower")


def forecast():
    """One with a number in every field."""
    texts = {"bottleneck": "host", "source": "test"}
    numbers = {known.name: 1.5 for known in fields(Forecast) if known.name not in texts}
    return Forecast(**numbers, **texts)


@pytest.mark.parametrize("machine", ["cpu", "8xa100"])
def test_a_plan_survives_json(solve, machine):
    plan, _ = solve(machine, checkpoint={"every": "10 minutes"})
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_a_plan_from_before_averages_is_read(solve):
    record = solve("cpu")[0].to_json()
    del record["learning"]["ema"]
    assert Plan.from_json(record).learning.ema.value is None


@pytest.mark.parametrize("name", list(_field_sections()))
def test_the_digest_changes_with_any_value(solve, name):
    plan, _ = solve()
    value = getattr(getattr(plan, _field_sections()[name], plan), name)
    if isinstance(value, Decision) and name != "offload":
        changed = Decision(other(value.value), value.reason)
    elif name == "resume_from":
        changed = "runs/x"
    elif name == "offload":
        changed = Decision("state", value.reason)
    elif name == "shrunk":
        changed = {"micro_batch_size": 8}
    elif name == "forecast":
        changed = forecast()
    elif name == "footprint":
        changed = replace(value, kept=[Line(1, 2)])
    elif name == "alternatives":
        changed = []
        plan = plan.replace(alternatives=[alternative()])
    elif name == "speedup_range":
        changed = [1.0, 2.0]
    else:
        changed = other(value)
    assert plan.replace(**{name: changed}).digest() != plan.digest()


def test_the_digest_is_the_same_for_the_same_plan(solve):
    plan, _ = solve()
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))).digest() == plan.digest()


def test_another_schema_version_is_refused(solve):
    record = solve()[0].to_json() | {"schema_version": 99}
    with pytest.raises(ValueError, match="99"):
        Plan.from_json(record)


def test_fields_of_a_later_version_are_passed_over(solve):
    plan, _ = solve()
    record = plan.to_json() | {"later": {"value": 1, "reason": "x"}}
    record["batch"]["later"] = {"value": 1, "reason": "x"}
    assert Plan.from_json(record) == plan


def test_decisions_are_all_fields_with_a_reason(solve):
    plan, _ = solve()
    decisions = plan.decisions()
    assert {"device", "ranks", "lr", "global_batch_size", "workers"} <= set(decisions)
    assert "identity" not in decisions
    assert "revision" not in decisions


def test_the_micro_batches_of_a_plan_are_made_of_its_sizes(solve):
    plan, _ = solve()
    sizes = plan.micro_batches
    assert sizes.num_samples == plan.batch.num_samples.value
    assert sizes.global_batch_size == plan.batch.global_batch_size.value
    assert sizes.micro_batch_size == plan.batch.micro_batch_size.value


def test_a_name_is_in_one_section_only(solve):
    plan, _ = solve()
    parts = [plan, *(getattr(plan, known.name) for known in fields(plan))]
    names = [known.name for part in parts if is_dataclass(part) for known in fields(part)]
    assert len(names) == len(set(names))


def test_values_are_replaced_by_name_in_any_section(solve):
    plan, _ = solve()
    changed = plan.replace(revision=3, lr=Decision(0.5, "test"), num_blocks=7)
    assert (changed.revision, changed.execution.num_blocks) == (3, 7)
    assert changed.learning.lr == Decision(0.5, "test")
    assert changed.devices == plan.devices
    with pytest.raises(KeyError):
        plan.replace(no_such_name=1)


@pytest.mark.parametrize("name", ["run-0.1", "run-schema-1"])
def test_a_plan_without_sections_is_read_value_by_value(name):
    record = json.loads((GOLDEN / name / "plan.json").read_text())
    plan = Plan.from_json(record)
    flat = {
        k: v for part in plan.to_json().values() if isinstance(part, dict) for k, v in part.items()
    }
    gone = {"schema_version", "revision", "is_recorded", "has_dropout"}
    gone |= {"measured_micro_batches", "evaluated"}
    assert {name: flat[name] for name in record if name not in gone} == {
        name: value for name, value in record.items() if name not in gone
    }
    assert plan.revision == record["revision"]
    assert Plan.from_json(plan.to_json()) == plan
