"""Whoever trains needs the pretrained weights; whoever plans does not."""

import json
from pathlib import Path

import pytest

from phalanx.errors import UserError
from phalanx.machine import Machine
from phalanx.prepare.plan import prepare
from phalanx.tracing.trace import trace_recipe

FIXTURES = Path(__file__).parents[2] / "fixtures"
RECIPE = f"{FIXTURES / 'recipes' / 'adapted.py'}:Adapted"


class NoLauncher:
    def start(self, variables):
        pass


def test_missing_weights_are_a_warning_in_a_plan_and_an_error_in_training(tmp_path):
    machine = Machine.from_json(json.loads((FIXTURES / "machines" / "cpu.json").read_text()))
    job = {"recipe": RECIPE, "options": {"base": str(tmp_path / "gone")}, "devices": {"cpu": 1}}
    job |= {"output": str(tmp_path), "epochs": 1, "global_batch_size": 10}
    settings = {"machine": machine, "ask_trace": trace_recipe_of}
    prepared = prepare(job, **settings)
    (finding,) = [f for f in prepared.findings if f.slug == "no-base"]
    assert finding.severity == "warning"
    with pytest.raises(UserError) as raised:
        prepare(job, launcher=NoLauncher(), **settings)
    assert [f.slug for f in raised.value.findings if f.severity == "error"] == ["no-base"]


def trace_recipe_of(spec, options, precisions):
    return trace_recipe(spec, options, precisions)
