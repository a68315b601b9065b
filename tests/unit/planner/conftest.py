"""Jobs, machines and traces to plan with."""

import json
from pathlib import Path

import pytest

from phalanx.job import load_job
from phalanx.machine import Machine
from phalanx.planner.schema.trace import Trace
from phalanx.planner.solve import solve_plan

FIXTURES = Path(__file__).parents[2] / "fixtures" / "machines"


@pytest.fixture(scope="session")
def load_machine():
    """The fixture machine of that name."""
    return lambda name: Machine.from_json(json.loads((FIXTURES / f"{name}.json").read_text()))


@pytest.fixture
def make_job():
    """A job of ten epochs; it states a batch of 64 unless another kind is given."""

    def make(**keys):
        base = {"recipe": "digits"}
        if "steps" not in keys:
            base["epochs"] = 10
        if "batch_per_gpu" not in keys:
            base["global_batch_size"] = 64
        return load_job({**base, **keys}).job

    return make


@pytest.fixture
def make_trace():
    def make(**changes):
        facts = {
            "recipe_fingerprint": "r" * 16,
            "options": {"width": 32},
            "num_samples": 1437,
            "num_test_samples": 360,
            "data_fingerprint": "d" * 16,
            "parameters": 1000,
            "trainable_parameters": 900,
            "parameter_bytes": 4000,
            "has_batchnorm": False,
            "metric": "accuracy",
            "metric_mode": "max",
        }
        return Trace(**{**facts, **changes})

    return make


@pytest.fixture
def solve(make_job, make_trace, load_machine):
    """Plan and Findings of a job on a fixture machine."""

    def solve(machine="cpu", *, previous=None, trace=None, **keys):
        facts = make_trace(**(trace or {}))
        return solve_plan(make_job(**keys), load_machine(machine), facts, previous=previous)

    return solve
