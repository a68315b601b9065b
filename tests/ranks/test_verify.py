"""Faults planted in a recipe are caught, and named, before they cost a training; clean recipes
pass. Most run on the pool of ranks, a few through the real command."""

import json
import re
import tempfile
from pathlib import Path

import pytest

import phalanx
from phalanx.diagnose.compare import compare
from phalanx.diagnose.difference_cause import explain
from phalanx.diagnose.recording import read_recording
from phalanx.errors import UserError
from phalanx.job import load_job
from phalanx.planner.solve import solve_plan
from phalanx.planner.verify_plans import comparable_sides
from phalanx.prepare.open_run import open_run
from phalanx.prepare.plan import Prepared
from phalanx.run.directory import RunDirectory
from phalanx.run.purpose import Record
from phalanx.tracing.trace import trace_recipe
from tests.cli.command import pretend_machine, run_cli
from tests.fixtures.event_lines import read_events
from tests.ranks.runs import BASE, FIXTURES, RECIPE, full, machine, train

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
        world = side.plan.devices.ranks.value
        prepared = Prepared(side.job, machine(), trace, side.plan, [])
        with open_run(prepared, purpose=Record(side.has_dropout)) as run:
            train(pool, run, ranks=world)
        recordings.append(read_recording(run.recordings, world))
    return recordings


SHARDED = {"recipe": RECIPE, "strategy": "fsdp"}

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
    "own-noise": (
        "verify-data-random",
        "batch",
        0,
        "augmented otherwise; slots of rank 0 are equal",
    ),
    "noise-in-loss": ("verify-loss-by-rank", "loss", 0, "seeded with RANK"),
    "outside": ("verify-not-reduced", "gradient", 0, "the model has not got it"),
    "outside-by-rank": ("verify-initial-weights", "weight", -1, "the model has not got it"),
    "frozen-first": ("verify-not-reduced", "gradient", 1, "it was frozen"),
    "hook": ("verify-gradient", "gradient", 0, "1/2 what it is on one rank"),
    "written": ("verify-weight", "weight", -1, "it is frozen and changes"),
}


@pytest.mark.parametrize(
    ("fault", "strategy"), [*((fault, "ddp") for fault in PLANTED), ("outside", "fsdp")]
)
def test_a_planted_fault_is_caught_and_named(pool, tmp_path, fault, strategy):
    slug, kind, step, words = PLANTED[fault]
    one, many = record(pool, tmp_path, strategy=strategy, options={"fault": fault})
    compared = compare(one, many)
    finding = explain(compared, one, many)
    assert not compared.is_same
    assert (finding.slug, compared.first.kind, compared.first.step) == (slug, kind, step), finding
    assert words in f"{finding.what} {finding.why}", finding


def test_a_rank_that_holds_a_part_of_the_data_is_refused(pool, tmp_path):
    with pytest.raises(AssertionError, match=r"rank 1 finds 25 samples .* 50 were planned for"):
        record(pool, tmp_path, options={"fault": "own-share"})


@pytest.mark.parametrize(
    ("ranks", "changes"),
    [
        full(4, {"recipe": RECIPE, "loader": {"workers": 1}}, id="dropout-4-ranks"),
        full(2, {"recipe": RECIPE, "options": {"batchnorm": True}}, id="batchnorm"),
        pytest.param(
            3, {"recipe": RECIPE, "options": {"late_weight": True, "unused": True}}, id="late"
        ),
        full(2, {"recipe": RECIPE, "determinism": "exact"}, id="exact"),
        pytest.param(3, {**SHARDED, "options": {"blocks": 2, "gain": True}}, id="fsdp"),
        full(
            4, {**SHARDED, "fsdp": {"shard_ranks": 2}, "options": {"late_weight": True}}, id="hsdp"
        ),
        # The attribute is one of the model, and DDP wraps the loss: it is reduced all the same.
        pytest.param(2, {"options": {"fault": "ignored-by-ddp"}}, id="ignored-by-ddp"),
        pytest.param(
            3,
            {
                "options": {"fault": "bias-before-batchnorm", "samples": 90},
                "global_batch_size": 30,
                "micro_batch_size": 10,
            },
            id="noise",
        ),
    ],
)
def test_a_clean_recipe_passes(pool, tmp_path, ranks, changes):
    one, many = record(pool, tmp_path, ranks=ranks, **changes)
    compared = compare(one, many)
    assert explain(compared, one, many) is None
    assert compared.is_same
    assert many.world == ranks and compared.tallies["ranks"].count > 0
    is_noisy = changes.get("options", {}).get("fault") == "bias-before-batchnorm"
    assert compared.unjudged == (["layers.0.bias"] if is_noisy else [])
    busy = {rank for rank, _ in many.slots(0).values()}
    assert busy == set(range(ranks)), "a rank without a slot proves nothing"
    assert compared.tallies["gradient"].largest < 1e-13, "room for faults below the tolerance"


JOB = {
    "recipe": FAULTS,
    "steps": 500,
    "global_batch_size": 12,
    "precision": "fp32",
    "seed": 7,
    # All that a run would do beside training stays away.
    "ema": {"decay": 0.9},
    "checkpoint": {"every": "1 steps"},
    "evaluate": {"every": "1 steps", "early_stopping": 1},
    "schedule": {"warmup": "300 steps"},
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder to stand in, with a job and a place for temporary files."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "job.yaml").write_text(json.dumps(JOB))
    pretend_machine(monkeypatch, "cpu")
    return tmp_path


def test_the_command_says_what_differs_and_exits_1(here):
    # A zero that only one rank moves: the first loss is the same, the first gradient is not.
    answer = run_cli("verify", "job.yaml", "--ranks", "2", "--steps", "2", "fault=outside")
    assert answer.code == 1, answer.err
    assert "not the same, to 1e-10 of the norm, in float64" in answer.out
    assert re.search(r"loss terms and weights +28 numbers +equal", answer.out)
    assert re.search(r"gradients +7 tensors +\d", answer.out)
    assert "error[verify-not-reduced]: step 1, the gradient of" in answer.err
    assert "note[verify-changes]: `precision` is fp64" in answer.err
    assert "note[verify-on-cpu]: the 2 ranks are CPU processes" in answer.err
    assert not list((here / "tmp").glob("phalanx-*")), "the temporary folder is still there"
    assert not (here / "runs").exists()


@pytest.mark.full
def test_from_python_with_the_runs_kept(here):
    found = phalanx.verify(JOB, ranks=2, steps=2, keep=here / "kept", dropout=0.2)
    assert found.passed, found.findings
    assert found.plan.parallel.strategy.value == "ddp"
    json.dumps(found.to_json(), allow_nan=False)
    for name in ("1-rank", "2-ranks"):
        run = RunDirectory(here / "kept" / name)
        assert list(run.recordings.iterdir())
        assert not list(run.checkpoints.iterdir()), "nothing is saved"
        kinds = {event.kind for event in read_events(run.events)}
        assert "evaluate" not in kinds and "checkpoint" not in kinds
    with pytest.raises(UserError, match="verify-keep"):
        phalanx.verify(JOB, ranks=2, keep=here / "kept")


@pytest.mark.full
def test_a_run_that_fails_speaks_for_itself(here):
    answer = run_cli("verify", "job.yaml", "--json", "fault=crash")
    assert answer.code == 1
    assert answer.out == ""
    assert "error[rank-crashed]: rank 1 failed: ZeroDivisionError: planted" in answer.err
    log = re.search(r"`less (.*)`", answer.err)[1]
    assert "planted" in Path(log).read_text(), "the log it points at is gone"


@pytest.mark.parametrize(
    ("argv", "slug"),
    [
        (["job.yaml", "--ranks", "1"], "verify-nothing"),
        (["job.yaml", "--strategy", "single"], "verify-single"),
        (["job.yaml", "optimizer.rate=3"], "unknown-key"),
        ([], "no-job"),
    ],
)
def test_a_wrong_request_is_refused_before_anything_starts(here, argv, slug):
    answer = run_cli("verify", *argv)
    assert answer.code == 2
    assert f"error[{slug}]" in answer.err
