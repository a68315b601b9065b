"""`verify` compares what `train` does: also the micro-batches that the plan chooses on one rank and
on many. Each fix that a Finding prints is carried out, and then the job verifies."""

import json

import pytest

import phalanx
from phalanx.run.directory import RunDirectory
from tests.cli.command import pretend_machine, run_cli
from tests.fixtures.event_lines import read_events
from tests.ranks.runs import FIXTURES, full

RECIPE = f"{FIXTURES / 'recipes' / 'cuts.py'}:Cuts"
JOB = {"recipe": RECIPE, "global_batch_size": 12, "steps": 50, "devices": {"cpu": 2}, "seed": 3}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pretend_machine(monkeypatch, "cpu")


def verify(*overrides, steps=1, **given):
    return phalanx.verify(JOB, *overrides, steps=steps, **given)


def only_error(found):
    assert not found.passed
    (error,) = [finding for finding in found.findings if finding.severity == "error"]
    return error


def fixes(finding):
    """The overrides of the fixes that are job keys, one list for each."""
    parts = [part.removeprefix("or ") for part in finding.fix.split("; ")]
    return [part.split() for part in parts if part.split()[0].count("=") == 1]


@pytest.mark.parametrize("way", ["mean", full("mean-of-samples"), full("smoothed")])
def test_an_average_over_own_tokens_is_not_the_same(way):
    found = verify(f"way={way}")
    assert found.comparison.is_same, "in the same micro-batches nothing differs"
    error = only_error(found)
    assert error.slug == "verify-loss-weight"
    assert "on 1 rank in micro-batches of 12" in error.what
    assert "on 2 ranks in micro-batches of 6" in error.what
    weight = "is 1 on 1 rank" if way == "mean" else "with the same weight 12"
    assert weight in error.why and "own" in error.why and "tokens" in error.why
    # `way=sum` is the sum over the targets with their number: what the fix asks for.
    assert 'Term(F.cross_entropy(..., reduction="sum"), num_targets)' in error.fix
    assert all(verify(f"way={way}", *fix).passed for fix in fixes(error))


def test_a_sum_over_targets_with_their_number_is_the_same():
    found = verify("way=sum")
    assert found.passed and found.findings == []
    record = found.to_json()
    assert record["planned"]["micro_batch_size"] == {"1": 12, "2": 6}
    assert record["planned"]["first_difference"] is None
    json.dumps(record, allow_nan=False)


@pytest.mark.full
def test_train_differs_where_verify_says_so():
    def losses(way, ranks):
        fp64 = {"precision": "fp64", "logging": {"every": 1, "tensorboard": False}}
        job = {**JOB, **fp64, "steps": 3, "devices": {"cpu": ranks}}
        done = phalanx.train(job, f"way={way}")
        events = read_events(RunDirectory(done.run).events)
        return [event.data["loss"] for event in events if event.kind == "step"]

    for way, is_same in (("mean", False), ("sum", True)):
        one, two = losses(way, 1), losses(way, 2)
        assert (one == pytest.approx(two, rel=1e-10)) == is_same


@pytest.mark.full
@pytest.mark.parametrize(
    ("given", "num_fixes"),
    [
        ([], 2),  # over all ranks, or in the same micro-batches
        full(["gradient_accumulation=2"], 1),
        (["sync_batchnorm=true", "micro_batch_size=6"], 1),
        full(["sync_batchnorm=true", "gradient_accumulation=2"], 1),
    ],
    ids=lambda value: " ".join(value) or "plain" if isinstance(value, list) else "",
)
def test_batchnorm_differs_by_the_micro_batches_of_the_plan(given, num_fixes):
    found = verify("norm=batch", *given)
    assert found.comparison.is_same
    error = only_error(found)
    assert error.slug == "verify-batchnorm"
    assert ("tried: with sync_batchnorm=true they are the same" in error.why) == (num_fixes == 2)
    cures = fixes(error)
    assert len(cures) == num_fixes
    for cure in cures:
        assert verify("norm=batch", *given, *cure).passed, cure


@pytest.mark.full
def test_a_wrong_weight_is_not_put_down_to_batchnorm():
    assert only_error(verify("norm=batch", "way=mean-of-samples")).slug == "verify-loss-weight"


@pytest.mark.full
def test_three_ranks_with_unequal_micro_batches():
    assert verify("way=sum", "global_batch_size=13", ranks=3).passed
    assert only_error(verify("way=mean", "global_batch_size=13", ranks=3)).slug == (
        "verify-loss-weight"
    )


@pytest.mark.full
@pytest.mark.parametrize("way", ["contrastive", "noise-in-model", "numpy-global"])
def test_what_depends_on_its_micro_batch_is_named(way):
    slug, words = {
        "contrastive": ("verify-loss-weight", "compares the samples of a micro-batch"),
        "noise-in-model": ("verify-draws", "torch's generator"),
        "numpy-global": ("verify-data-random", "in 6 of 144 elements"),
    }[way]
    error = only_error(verify(f"way={way}"))
    assert (error.slug, words in error.why) == (slug, True), error
    (cure,) = fixes(error)
    assert verify(f"way={way}", *cure).passed


@pytest.mark.parametrize(
    "given",
    [
        full(["norm=group"]),
        full(["way=mean-of-equals"]),
        full(["way=padded", "--strategy=fsdp"]),
    ],
    ids=" ".join,
)
def test_a_recipe_that_is_right_in_any_cut_passes(given):
    strategy = {"strategy": "fsdp"} if "--strategy=fsdp" in given else {}
    found = verify(*(g for g in given if not g.startswith("--")), **strategy)
    assert found.passed, found.findings


@pytest.mark.full
@pytest.mark.parametrize("given", ["dropout=0.2", "way=literal-dropout", full("way=drop-path")])
def test_dropout_is_compared_in_the_same_micro_batches_and_disabled_in_others(given):
    found = verify(given)
    assert found.passed and found.planned.dropout
    (note,) = found.findings
    assert (note.slug, note.severity) == ("verify-dropout", "note")
    alike = verify(given, "micro_batch_size=6")
    assert alike.passed and alike.planned is None and alike.findings == []


def test_a_batch_per_gpu_is_one_global_batch():
    job = {**JOB, "global_batch_size": None, "batch_per_gpu": 6}
    found = phalanx.verify(job, steps=2)
    assert found.passed and found.planned is None
    (note,) = found.findings
    assert "12 on 1 rank too" in note.what
    cure = note.fix.split(": ")[1].split()
    assert phalanx.verify(job, *cure, steps=2).findings == []


@pytest.mark.full
def test_the_verdict_says_what_was_compared():
    given = ("verify", RECIPE, "--batch-size", "12", "--steps", "2", "--cpu", "2")
    same = run_cli(*given)
    assert same.code == 0, same.err
    assert "the same: training on 2 ranks is training on one, to 1e-10 of the norm" in same.out
    assert "compared: 2 steps in micro-batches of 3, and in those of the plan, 12 and 6" in same.out
    other = run_cli(*given, "norm=batch")
    assert other.code == 1
    assert "the micro-batches of the plan make the difference, 12 on 1 rank and 6 on" in other.out
    by_rank = run_cli(*given, "way=token-by-rank")
    assert by_rank.code == 1
    assert "the number of ranks makes the difference" in by_rank.out


@pytest.mark.full
def test_an_augmentation_by_rank_is_told_from_another_sample():
    error = only_error(verify("way=token-by-rank"))
    assert error.slug == "verify-data-random"
    assert "`x` in 3 of 36 elements (3 of 3 samples), such as sample" in error.what
    assert " at [3]: " in error.what and " on 1 rank, " in error.what
    assert "augmented otherwise" in error.why
    assert verify("way=token-by-key").passed, "drawn from the keys, as the fix says"
