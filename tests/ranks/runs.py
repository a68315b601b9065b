"""Makes and runs run directories without the command line: the same plan, the same worker."""

import json
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from phalanx.engine.rank.worker import run_worker
from phalanx.job import load_job
from phalanx.machine import Machine
from phalanx.planner.schema.plan import Decision, Plan
from phalanx.planner.solve import solve_plan
from phalanx.prepare.open_run import open_run
from phalanx.prepare.plan import Prepared
from phalanx.run.directory import RunDirectory
from phalanx.tracing.trace import trace_recipe
from tests.fixtures.event_lines import read_events
from tests.ranks import fresh_deepspeed

FIXTURES = Path(__file__).parents[1] / "fixtures"
RECIPE = f"{FIXTURES / 'recipes' / 'parity.py'}:Parity"

BASE = {
    "recipe": RECIPE,
    "steps": 12,
    "global_batch_size": 10,  # does not divide by 3 or 4; 50 samples are 5 steps an epoch
    "micro_batch_size": 3,  # slots of 2, 3, 2, 3: unequal weights
    "precision": "fp64",
    "seed": 7,
    "optimizer": {"lr": 0.01, "clip_norm": 1.0},
    "schedule": {"warmup": "2 steps"},
    "logging": {"every": 1, "tensorboard": False},
    "ddp": {"bucket_mb": 0.002},  # 2 KiB: every layer in a bucket of its own
    "checkpoint": {"every": None},
    "evaluate": {"every": "4 steps"},
}


def full(*values, **named):
    """A case of a test that `make test-full` alone runs: another of the same kind is always run."""
    return pytest.param(*values, marks=pytest.mark.full, **named)


@cache
def machine():
    text = (FIXTURES / "machines" / "cpu.json").read_text()
    return Machine.from_json(json.loads(text))


def make_run(folder, *, ranks, threads=1, **changes):
    """A run directory ready for its ranks, of one thread each: the machine of the fixture has many
    cores, and as many threads on two wait for each other. `None`: as the plan has it."""
    job = load_job({**BASE, "output": str(folder), "devices": {"cpu": ranks}, **changes}).job
    trace, findings = trace_recipe(job.recipe, job.options)
    assert trace is not None, findings
    job = job.model_copy(update={"options": trace.options})
    plan, findings = solve_plan(job, machine(), trace)
    if threads is not None:
        plan = plan.replace(threads=Decision(threads, "the test's"))
    with open_run(Prepared(job, machine(), trace, plan, findings)) as run:
        return run


def change_run(run, *, ranks=None, **changes):
    """Let a run go on with other settings, as `--resume` does: a new plan revision."""
    record = load_job(run.job_file).job.model_dump(mode="json")
    record |= changes
    if ranks is not None:
        record["devices"] = {"cpu": ranks}
    job = load_job(record).job
    trace, _ = trace_recipe(job.recipe, job.options)
    previous = Plan.from_json(json.loads(run.plan_file.read_text()))
    plan, findings = solve_plan(job, machine(), trace, previous=previous)
    with open_run(Prepared(job, machine(), trace, plan, findings, run)):
        return run


def train(pool, run, *, ranks, timeout_s=60, env=None, attempt=0):
    """Run every rank to its end."""
    name = "tests.ranks.runs:worker"
    done = pool.run(
        name, ranks=ranks, timeout_s=timeout_s, env=env, path=str(run.path), attempt=attempt
    )
    assert all(done), outcomes(run)
    return run


def worker(path, attempt):
    threads = torch.get_num_threads()
    try:
        return run_worker(Path(path), attempt=attempt)
    finally:
        torch.set_num_threads(threads)
        fresh_deepspeed.forget()


def weights(run, name="latest"):
    return load_file(run.checkpoints / name / "model.safetensors")


def optimizer_state(run, name="latest"):
    return load_file(run.checkpoints / name / "optimizer.safetensors")


def averages(run, name="latest"):
    return load_file(run.checkpoints / name / "ema" / "model.safetensors")


def unbroken_runs(pool, tmp_path_factory, **changes):
    """A function that gives the unbroken run on a number of ranks, trained once."""

    @cache
    def get(ranks):
        folder = tmp_path_factory.mktemp(f"unbroken-{ranks}")
        return train(pool, make_run(folder, ranks=ranks, **changes), ranks=ranks)

    return get


def losses(run):
    """Loss by step; a step that ran twice must have had the same loss."""
    found = {}
    for event in read_events(run.events):
        if event.kind == "step":
            assert found.setdefault(event.data["step"], event.data["loss"]) == event.data["loss"]
    return found


def outcomes(run):
    return [event.data for event in read_events(run.events) if event.kind == "outcome"]


def assert_same_bits(first: RunDirectory, second: RunDirectory):
    """Weights, buffers and optimizer state of the newest checkpoints, to the last bit."""
    for read in (weights, optimizer_state):
        one, other = read(first), read(second)
        assert one.keys() == other.keys()
        for name in one:
            assert torch.equal(one[name], other[name]), f"{name} differs"
