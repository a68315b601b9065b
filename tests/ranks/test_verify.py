"""Faults planted in a recipe are caught, and named, before they cost a training; clean recipes
pass. Most run on the pool of ranks, a few through the real command."""

import pytest

from phalanx.diagnose.cause import explain
from phalanx.diagnose.compare import compare
from phalanx.diagnose.recording import read_recording
from phalanx.engine.trace import trace_recipe
from phalanx.job import load_job
from phalanx.launch.prepare import Prepared, open_run
from phalanx.planner.comparable import comparable_sides
from phalanx.planner.solve import solve_plan
from tests.ranks.runs import BASE, FIXTURES, RECIPE, machine, train

FAULTS = f"{FIXTURES / 'recipes' / 'faults.py'}:Faults"
STEPS = 3


def record(pool, folder, *, ranks=2, **changes):
    """The recordings of a job on one rank and on many, as `verify` makes them."""
    job = load_job(
        {
            **BASE,
            "recipe": FAULTS,
            "output": str(folder),
            "devices": {"cpu": ranks},
            "stop_after": f"{STEPS} steps",
            **changes,
        }
    ).job
    trace, findings = trace_recipe(job.recipe, job.options)
    assert trace is not None, findings
    plan, _ = solve_plan(job, machine(), trace)
    recordings = []
    for side in comparable_sides(job, machine(), trace, plan, steps=STEPS)[:2]:
        world = side.plan.ranks.value
        with open_run(Prepared(side.job, machine(), trace, side.plan, [])) as run:
            train(pool, run, ranks=world)
        recordings.append(read_recording(run.recordings, world))
    return recordings


# fault -> (slug, kind and step of the first difference, words of the Finding)
PLANTED = {
    "buffers": ("verify-buffers", "buffer", 0, "layers.1.mean"),
    "buffers-used": ("verify-buffers", "loss", 0, "forward changes layers.1.mean"),
    "batchnorm-twice": ("verify-buffers", "buffer", 0, "runs this layer twice"),
    "world-in-loss": ("verify-loss-world", "loss", 0, "1/2 what it is on one rank"),
    "world-in-weight": ("verify-loss-world", "loss", 0, "weight(batch) knows more"),
    "collective": ("verify-loss-world", "loss", 0, "faults.py:"),
    "own-sampler": ("verify-data-by-rank", "batch", 0, "asked for sample "),
    "all-alike": ("verify-data-by-rank", "batch", 0, "the `id` of "),
    "own-noise": ("verify-data-random", "batch", 0, "only x differs; slots of rank 0 are equal"),
    "noise-in-loss": ("verify-loss-by-rank", "loss", 0, "seeded with RANK"),
    "outside": ("verify-not-reduced", "gradient", 0, "the model has not got it"),
    "outside-by-rank": ("verify-initial-weights", "weight", -1, "the model has not got it"),
    "frozen-first": ("verify-not-reduced", "gradient", 1, "it was frozen"),
    "hook": ("verify-gradient", "gradient", 0, "1/2 what it is on one rank"),
    "written": ("verify-weight", "weight", -1, "it is frozen and changes"),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_caught_and_named(pool, tmp_path, fault):
    slug, kind, step, words = PLANTED[fault]
    one, many = record(pool, tmp_path, options={"fault": fault})
    compared = compare(one, many)
    finding = explain(compared, one, many)
    assert not compared.is_same
    assert (finding.slug, compared.first.kind, compared.first.step) == (slug, kind, step), finding
    assert words in f"{finding.what} {finding.why}", finding


@pytest.mark.parametrize(
    ("ranks", "changes"),
    [
        pytest.param(4, {"recipe": RECIPE, "loader": {"workers": 1}}, id="dropout-4-ranks"),
        pytest.param(2, {"recipe": RECIPE, "options": {"batchnorm": True}}, id="batchnorm"),
        pytest.param(
            3, {"recipe": RECIPE, "options": {"late_weight": True, "unused": True}}, id="late"
        ),
        pytest.param(2, {"recipe": RECIPE, "determinism": "exact"}, id="exact"),
        # The attribute is one of the model, and DDP wraps the loss: it is reduced all the same.
        pytest.param(2, {"options": {"fault": "ignored-by-ddp"}}, id="ignored-by-ddp"),
    ],
)
def test_a_clean_recipe_passes(pool, tmp_path, ranks, changes):
    one, many = record(pool, tmp_path, ranks=ranks, **changes)
    compared = compare(one, many)
    assert explain(compared, one, many) is None
    assert compared.is_same
    assert many.world == ranks and compared.tallies["ranks"].count > 0
    assert not compared.unjudged
    busy = {rank for rank, _ in many.slots(0).values()}
    assert busy == set(range(ranks)), "a rank without a slot proves nothing"
    assert compared.tallies["gradient"].largest < 1e-13, "room for faults below the tolerance"
    print(compared.tallies)
