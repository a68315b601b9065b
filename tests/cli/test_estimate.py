"""`phalanx estimate`: the questions of the guides, answered from the recipe; wrong numbers."""

import json
from dataclasses import replace

import pytest

import phalanx
from phalanx.errors import UserError, format_seconds
from phalanx.verbs import estimate as estimating
from tests.cli.command import pretend_machine, run_cli
from tests.cli.test_plan_elsewhere import digits

pytestmark = pytest.mark.asks  # a fake answers

G1 = ("--dataset-size", "1000", "--epochs", "100", "--gpus", "16", "--gpu", "RTX 2080")
G2 = ("--steps", "5000,10000,20000", "--gpus", "2", "--gpu", "RTX 4090")


@pytest.fixture(autouse=True)
def asked(tmp_path, monkeypatch):
    """In an empty folder on a machine without GPUs, with the recipe's remembered answer; gives the
    recipes that are asked for."""
    monkeypatch.chdir(tmp_path)
    pretend_machine(monkeypatch, "cpu")
    given = []

    def ask(spec, options, precisions=(), **how):
        given.append(spec)
        return replace(digits(), options=options), []

    monkeypatch.setattr(estimating, "trace_recipe", ask)
    return given


def answer(*argv):
    done = run_cli("estimate", *argv, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


def shown(*argv):
    """The lines before the table, by their first word or words."""
    done = run_cli("estimate", *argv)
    assert done.code == 0, done.err
    lines = done.out.split("  from: ")[0].splitlines()
    return {line[:15].strip(): line[15:].strip() for line in lines}


def test_guide_one_asks_for_a_data_set_on_sixteen_gpus():
    got = answer("digits", *G1, "--batch-size", "256")
    assert (got["num_samples"], got["epochs"], got["ranks"]) == (1000, 100, 16)
    assert (got["steps_per_epoch"], got["total_steps"]) == (4, 400)
    assert got["total_s"] == pytest.approx(400 * got["step_s"])
    assert got["epoch_s"] == pytest.approx(got["total_s"] / 100)
    assert got["efficiency"] == pytest.approx(got["speedup"] / 16)
    assert got["total_low_s"] < got["total_s"] < got["total_high_s"]
    assert got["gpu_hours"] == pytest.approx(16 * got["total_s"] / 3600)
    lines = shown("digits", *G1, "--batch-size", "256")
    assert (lines["machine"], lines["data set"]) == ("16x RTX 2080", "1,000 samples")
    assert lines["batch"] == "256, 16 per GPU"
    assert "between" in lines["total"]


def test_time_is_that_of_the_model_and_not_a_constant(monkeypatch):
    small = answer("digits", *G1)["one_step_s"]
    deep = replace(digits(), operators={k: 40 * ops for k, ops in digits().operators.items()})
    monkeypatch.setattr(estimating, "trace_recipe", lambda *asked: (deep, []))
    assert answer("digits", *G1, "width=8")["one_step_s"] > small


def test_guide_two_asks_what_two_gpus_save_when_a_step_was_measured():
    got = answer(*G2, "--step-time", "5")
    for row, steps in zip(got["saved"], (5000, 10000, 20000), strict=True):
        assert (row["steps"], row["one_s"]) == (steps, 5 * steps)
        assert row["all_s"] == pytest.approx(row["one_s"] / got["speedup"])
        assert row["saved_s"] == pytest.approx(row["one_s"] - row["all_s"])
    # A step of 5 s is divided; what 32 thousand parameters take to exchange is nothing beside it.
    assert 1.8 < got["speedup"] < 2
    assert format_seconds(got["saved"][2]["one_s"]) == "27 h 46 min"
    assert "27 h 46 min" in run_cli("estimate", *G2, "--step-time", "5").out


def test_a_stated_step_that_the_host_needs_anyway_is_not_divided():
    # Half of a tenth of a millisecond is less than it takes to start the operators.
    assert answer(*G2, "--step-time", "0.0001")["speedup"] < 1


def test_a_batch_per_gpu_makes_a_larger_step_of_more_gpus():
    got = answer("digits", "global_batch_size=null", "batch_per_gpu=64", *G2, "--step-time", "5")
    assert got["global_batch_size"] == 128
    assert got["one_step_s"] == 5 < got["step_s"] < 6
    # The same samples on one GPU take twice as many of its steps.
    assert got["saved"][0]["one_s"] == 2 * 5000 * 5
    assert 1.8 < got["speedup"] < 2


def test_a_price_gives_a_cost():
    got = answer(*G2, "--step-time", "5", "--price", "2.5")
    assert got["cost"] == pytest.approx(2.5 * got["gpu_hours"], abs=0.01)
    assert answer(*G2)["cost"] is None
    assert shown(*G2, "--step-time", "5", "--price", "2.5")["cost"].endswith(
        "at 2.5 for each GPU and hour"
    )


def test_without_a_job_the_default_recipe_is_named(asked):
    assert shown("--gpu", "T4")["recipe"] == "digits"
    assert asked == ["digits"]


def test_a_machine_without_gpus_is_estimated_in_ranks():
    lines = shown("digits")
    assert "ranks" in lines and "GPUs" not in lines


@pytest.mark.parametrize(
    ("argv", "slug", "says"),
    [
        (["--gpus", "0", "--gpu", "T4"], "estimate-numbers", "--gpus is 0"),
        (["--gpus", "-2", "--gpu", "T4"], "estimate-numbers", "--gpus is -2"),
        (["--dataset-size", "-5", "--gpu", "T4"], "estimate-numbers", "--dataset-size is -5"),
        (["--dataset-size", "9" * 20, "--gpu", "T4"], "estimate-numbers", "at most 1,000,000,000"),
        (["--step-time", "nan", "--gpu", "T4"], "estimate-numbers", "--step-time is nan"),
        (["--step-time", "0", "--gpu", "T4"], "estimate-numbers", "--step-time is 0"),
        (["--price", "-1", "--gpu", "T4"], "estimate-numbers", "--price is -1"),
        (["--steps", "0,5", "--gpu", "T4"], "estimate-numbers", "--steps is 0"),
        (["--steps", "many", "--gpu", "T4"], "estimate-numbers", "`many` is no list"),
        (["--steps", "", "--gpu", "T4"], "estimate-numbers", "is no list"),
        (["--gpu", "RTX 4091"], "unknown-gpu", "did you mean `RTX 4090`?"),
        (["--gpus", "65", "--gpu", "T4"], "machine-words", "1 to 64"),
        (["--gpus", "4"], "estimate-which-gpu", "4 GPUs of which kind"),
    ],
)
def test_wrong_numbers_and_names(argv, slug, says):
    done = run_cli("estimate", "digits", *argv)
    assert done.code == 2
    assert f"error[{slug}]" in done.err and says in done.err


def test_all_wrong_numbers_are_said_at_once():
    err = run_cli("estimate", "--gpus", "0", "--dataset-size", "0", "--steps", "0").err
    assert err.count("error[estimate-numbers]") == 3


def test_a_model_that_cannot_be_traced_needs_the_time_of_a_step(monkeypatch):
    unknown = replace(digits(), operators={}, activation_bytes={}, activations_unknown="no kernel")
    monkeypatch.setattr(estimating, "trace_recipe", lambda *asked: (unknown, []))
    done = run_cli("estimate", *G2)
    assert done.code == 2
    assert "error[time-unknown]" in done.err and "no kernel" in done.err
    assert "phalanx bench digits" in done.err
    assert answer(*G2, "--step-time", "5")["saved"][2]["one_s"] == 100_000


def test_from_python():
    found = phalanx.estimate("digits", gpus=16, gpu="RTX 2080", dataset_size=1000, epochs=100)
    assert (found.ranks, found.num_samples, found.recipe) == (16, 1000, "digits")
    assert found.total_s == found.total_steps * found.step_s
    with pytest.raises(UserError, match="--gpus is 0"):
        phalanx.estimate(gpus=0)
