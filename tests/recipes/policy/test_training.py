"""The policy trains the same on any ranks, goes on from any checkpoint, and what scales it lies in
the weights."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from phalanx.engine.checkpoint.trained_model import build_model
from phalanx.engine.rank.worker import run_worker
from phalanx.recipe.loading import load_recipe
from tests.cli.command import run_cli
from tests.fixtures.event_lines import read_events
from tests.ranks.runs import (
    assert_same_bits,
    change_run,
    full,
    losses,
    make_run,
    outcomes,
    train,
    weights,
)
from tests.recipes.policy.robots import SMALL

pytestmark = pytest.mark.ranks
FP64 = 1e-9


def policy(folder, data, *, ranks, options=None, **changes):
    settings = {"recipe": "policy", "steps": 6, "checkpoint": {"every": "3 steps"}}
    settings |= {"ema": {"decay": 0.9}, "evaluate": {"every": "3 steps"}, "global_batch_size": 20}
    settings |= {"micro_batch_size": 7, **changes}
    return make_run(
        folder,
        ranks=ranks,
        options={"data": str(data), "statistics": "task", **SMALL, **(options or {})},
        **settings,
    )


def metrics(run):
    return [e.data["metrics"] for e in read_events(run.events) if e.kind == "evaluate"]


@pytest.fixture(scope="module")
def one(pool, swings, tmp_path_factory):
    return train(pool, policy(tmp_path_factory.mktemp("one"), swings, ranks=1), ranks=1)


@pytest.mark.parametrize(
    "changes", [pytest.param({}, id="ddp"), full({"strategy": "fsdp"}, id="fsdp")]
)
def test_two_ranks_train_what_one_trains(pool, swings, one, tmp_path, changes):
    two = train(pool, policy(tmp_path, swings, ranks=2, **changes), ranks=2)
    assert losses(two) == pytest.approx(losses(one), rel=0, abs=FP64)
    for ours, theirs in zip(metrics(two), metrics(one), strict=True):
        assert ours == pytest.approx(theirs, rel=0, abs=FP64)
    for name, tensor in weights(one).items():
        torch.testing.assert_close(weights(two)[name], tensor, rtol=0, atol=FP64)


def test_a_run_resumed_within_an_epoch_equals_the_unbroken_one(pool, swings, tmp_path):
    given = {"ranks": 2, "precision": "fp32"}
    unbroken = train(pool, policy(tmp_path / "unbroken", swings, **given), ranks=2)
    run = policy(tmp_path / "broken", swings, stop_after="2 steps", **given)
    train(pool, run, ranks=2)
    train(pool, change_run(run, stop_after=None), ranks=2, attempt=1)
    assert losses(run) == losses(unbroken)
    assert_same_bits(run, unbroken)


@pytest.fixture(scope="module")
def trained(swings, tmp_path_factory):
    """A run on a copy of the data, which is then taken away."""
    folder = tmp_path_factory.mktemp("away")
    data = shutil.copytree(swings, folder / "data")
    short = {"steps": 60, "evaluate": {"at_start": True}, "optimizer": {"lr": 0.003}}
    run = policy(folder / "runs", data, ranks=1, name="policy", precision="fp32", **short)
    assert run_worker(run.path, handle_signals=False), outcomes(run)
    shutil.rmtree(data)
    return run


def test_statistics_lie_in_the_weights_and_the_run_needs_no_data(trained, swings, tmp_path):
    copy = shutil.copytree(trained.path, tmp_path / "elsewhere", symlinks=True)
    job = json.loads((copy / "checkpoints/latest/state.json").read_text())["job"]
    recipe = load_recipe("policy", job["options"])
    file = copy / "checkpoints/latest/ema/model.safetensors"
    model, findings = build_model(recipe, file)
    assert not findings
    away = load_recipe("policy", {**job["options"], "data": str(swings)})
    expected = away.model().scales
    for name in ("state_mean", "state_std", "action_mean", "action_std"):
        torch.testing.assert_close(getattr(model.scales, name), getattr(expected, name))
    assert model.scales.action_std[1].max() > 20 * model.scales.action_std[0].max()


def test_training_without_the_data_is_refused_and_not_scaled_by_nothing(trained):
    from phalanx.errors import UserError

    job = json.loads((trained.checkpoints / "latest/state.json").read_text())["job"]
    recipe = load_recipe("policy", job["options"])
    recipe.model()
    with pytest.raises(UserError, match="policy-data-gone"):
        recipe.data("train")


@pytest.mark.full
def test_the_average_is_saved_and_is_what_is_evaluated(trained, swings):
    raw = load_file(trained.checkpoints / "latest" / "model.safetensors")
    average = load_file(trained.checkpoints / "latest" / "ema" / "model.safetensors")
    assert raw.keys() == average.keys()
    assert (raw["action_out.weight"] - average["action_out.weight"]).abs().max() > 0
    torch.testing.assert_close(raw["scales.state_std"], average["scales.state_std"])
    answer = run_cli(
        "evaluate", str(trained.path), "--checkpoint", "latest", f"data={swings}", "--cpu", "1",
        "--json",
    )  # fmt: skip
    assert answer.code == 0, answer.err
    told = json.loads(answer.out)
    assert told["weights"] == "average"
    recorded = metrics(trained)[-1]
    assert told["metrics"]["action_error"] == pytest.approx(recorded["action_error"], rel=1e-5)


def test_what_is_sampled_comes_nearer_to_the_demonstrations(trained):
    before, *_, after = metrics(trained)
    assert after["action_error"] < 0.75 * before["action_error"]
    assert after["loss"] < 0.75 * before["loss"]


@pytest.mark.full
def test_verify_finds_one_and_two_ranks_the_same(swings):
    answer = run_cli(
        "verify", "policy", f"data={swings}", "text_encoder=none", "chunk=4", "--steps", "4",
        "--batch-size", "16",
    )  # fmt: skip
    assert answer.code == 0, answer.out + answer.err
