"""Experts drive a merge, a planner learns it within seconds and drives it among traffic that it has
not seen; the same on two ranks, and to the bit after a stop in the middle of an epoch."""

import json
import shutil

import numpy as np
import pytest
import torch

from phalanx.engine.rank.closed_loop import run_benchmark
from phalanx.engine.rank.worker import run_worker
from phalanx.job import load_job
from phalanx.planner.batch.learning_rate import scale_lr
from phalanx.recipe.loading import builtin_recipes, load_recipe
from phalanx.recipes.bev.dataset import collect, describe, missing_simulator
from phalanx.recipes.bev.options import BevCollecting
from tests.cli.command import run_cli
from tests.fixtures.event_lines import read_events
from tests.ranks.command import phalanx
from tests.ranks.runs import (
    FIXTURES,
    assert_same_bits,
    averages,
    change_run,
    full,
    losses,
    make_run,
    outcomes,
    train,
    weights,
)

pytestmark = pytest.mark.ranks
SMALL = {"scenarios": ["merge"], "width": 32, "depth": 2, "pictures": False}


@pytest.fixture(scope="module")
def experts(tmp_path_factory):
    assert not missing_simulator(), "highway-env comes with the extra `dev`"
    folder = tmp_path_factory.mktemp("merge") / "data"
    return collect(BevCollecting(scenarios=["merge"], episodes=16, workers=2), folder)


def bev(folder, experts, *, ranks, options=None, **changes):
    settings = {
        "recipe": "bev",
        "steps": 7,
        "global_batch_size": 16,
        "micro_batch_size": 8,
        "precision": "fp32",
        "ema": {"decay": 0.9},
        "evaluate": {"every": None, "batch_size": 256},
        **changes,
    }
    return make_run(
        folder, ranks=ranks, options={**SMALL, "data": str(experts), **(options or {})}, **settings
    )


@pytest.fixture(scope="module")
def trained(experts, tmp_path_factory):
    run = bev(
        tmp_path_factory.mktemp("runs"),
        experts,
        ranks=1,
        steps=260,
        global_batch_size=64,
        micro_batch_size=64,
        optimizer={"lr": 0.003, "clip_norm": 1.0},
        schedule={"name": "cosine", "warmup": "5%"},
        ema={"decay": 0.98, "warmup": True},
        logging={"every": 50, "tensorboard": False},
        options={"pictures": True},
    )
    assert run_worker(run.path, handle_signals=False), outcomes(run)
    return run


@pytest.fixture
def ask_here(monkeypatch, tmp_path):
    """The child process costs an import of torch."""

    def ask(verb, question, **settings):
        request, result = tmp_path / "request", tmp_path / "result"
        request.write_text(json.dumps(question))
        run_benchmark(request, result)
        return json.loads(result.read_text()), ""

    monkeypatch.setattr("phalanx.prepare.engine_child.ask_engine", ask)


def events_of(run, kind):
    return [event.data for event in read_events(run.events) if event.kind == kind]


def test_what_was_collected_is_what_a_recipe_opens(experts):
    recipe = load_recipe("bev", {**SMALL, "data": str(experts)})
    assert recipe.check() == []
    data = recipe.data("train")
    assert f"{len(data):,} samples to train" in describe(experts)[0]
    batch = data.__getitems__(torch.arange(0, len(data), 7).numpy(), None)
    assert batch["bev"].dtype == torch.uint8
    assert batch["speed"].min() > 0
    # Every second sample is the expert's own: no way is longer than 4 s at 40 m/s.
    assert 0 < batch["plan"][:, -1, 0].max() < 160


@pytest.mark.full
def test_it_plans_far_better_than_constant_velocity(trained):
    (evaluated,) = events_of(trained, "evaluate")
    found = evaluated["metrics"]
    assert found["ade"] < 0.6 * found["constant_velocity_ade"]
    assert 0.7 < found["within_2_deviations"] <= 1
    shown = {data["name"] for data in events_of(trained, "media")}
    assert "plan-0" in shown
    # The spread of the data is in the weights, and in their average.
    for state in (weights(trained), averages(trained)):
        assert (state["spread"] != 1).all()


@pytest.mark.usefixtures("ask_here")
def test_a_checkpoint_alone_drives_and_nobody_collides(trained, experts, tmp_path, monkeypatch):
    shutil.copytree(trained.checkpoints / "latest", tmp_path / "planner")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    answer = run_cli(
        "evaluate", str(tmp_path / "planner"), "--benchmark", "highway", "--episodes", "8",
        "--video", str(tmp_path / "films"), "--json", f"data={tmp_path / 'gone'}",
    )  # fmt: skip
    assert answer.code == 0, answer.err
    told = json.loads(answer.out)
    (own,) = told["tasks"]
    expert, straight = (told["baselines"][who][0] for who in ("expert", "constant velocity"))
    assert own["task"] == "merge" and own["episodes"] == expert["episodes"] == 8
    assert expert["figures"]["collisions"] == 0
    assert straight["figures"]["collisions"] >= 0.25
    assert own["figures"]["collisions"] < straight["figures"]["collisions"] / 2
    assert own["figures"]["driving_score"] > straight["figures"]["driving_score"] + 10
    assert (tmp_path / "films" / "merge.mp4").read_bytes()[4:8] == b"ftyp"


@pytest.mark.usefixtures("ask_here")
@pytest.mark.parametrize(
    ("options", "slug"),
    [(["--horizon", "21"], "horizon"), (["bev_kind=image", "bev_channels=7"], "init-weights")],
)
def test_what_cannot_be_driven_is_a_finding(trained, options, slug):
    answer = run_cli("evaluate", str(trained.path), "--benchmark", "highway", *options)
    assert answer.code == 2
    assert f"error[{slug}]" in answer.err


@pytest.mark.full
def test_it_goes_on_in_the_middle_of_an_epoch_to_the_bit(pool, experts, tmp_path):
    unbroken = train(pool, bev(tmp_path / "whole", experts, ranks=1), ranks=1)
    run = bev(tmp_path / "stopped", experts, ranks=1, stop_after="4 steps")
    train(pool, run, ranks=1)
    change_run(run, stop_after=None)
    train(pool, run, ranks=1, attempt=1)
    assert_same_bits(run, unbroken)
    one, other = averages(run), averages(unbroken)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert (
        events_of(run, "evaluate")[-1]["metrics"] == events_of(unbroken, "evaluate")[-1]["metrics"]
    )


@pytest.fixture(scope="module")
def one(pool, experts, tmp_path_factory):
    run = bev(tmp_path_factory.mktemp("one"), experts, ranks=1, precision="fp64", steps=4)
    return train(pool, run, ranks=1)


@pytest.mark.parametrize(
    "changes", [pytest.param({}, id="ddp"), full({"strategy": "fsdp"}, id="fsdp")]
)
def test_two_ranks_train_what_one_does(pool, experts, one, tmp_path, changes):
    run = bev(tmp_path, experts, ranks=2, precision="fp64", steps=4, **changes)
    train(pool, run, ranks=2)
    assert losses(one) == pytest.approx(losses(run), rel=1e-9)
    first, second = (events_of(run, "evaluate")[-1]["metrics"] for run in (one, run))
    assert first == pytest.approx(second, rel=1e-6)


@pytest.mark.full
def test_verify_finds_two_ranks_equal_to_one(experts, tmp_path):
    given = [f"data={experts}", "width=32", "depth=2", "pictures=false"]
    code, out, err = phalanx("verify", "bev", *given, cwd=tmp_path, timeout_s=240)
    assert code == 0, err
    assert "the same: training on 2 ranks is training on one" in out + err


def test_a_collection_that_is_damaged_is_told_with_file_and_index(experts, tmp_path):
    folder = tmp_path / "damaged"
    shutil.copytree(experts, folder)
    content = (folder / "train" / "plan.npy").read_bytes()
    (folder / "train" / "plan.npy").write_bytes(content[: len(content) // 2])
    (folder / "train" / "speed.npy").unlink()
    speeds = np.load(folder / "test" / "speed.npy")
    speeds[5] = np.nan
    np.save(folder / "test" / "speed.npy", speeds)
    np.save(folder / "test" / "bev.npy", np.load(folder / "test" / "bev.npy")[:, :3])
    found = load_recipe("bev", {**SMALL, "data": str(folder)}).check()
    told = [(finding.slug, *finding.what.split("`")[1].split("/")[-2:]) for finding in found]
    assert told == [
        ("bev-array", "train", "speed.npy"),
        ("bev-array", "train", "plan.npy"),
        ("bev-array", "test", "bev.npy"),
        ("bev-not-finite", "test", "speed.npy"),
    ]
    assert "index 5" in found[-1].why


def test_a_team_s_yaml_becomes_a_job_of_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = run_cli("import", str(FIXTURES / "imports" / "planner.yaml"), "--recipe", "bev")
    assert answer.code == 0, answer.err
    job = load_job(tmp_path / "job.yaml").job
    assert (job.recipe, job.batch_per_gpu, job.epochs) == ("bev", 32, 500)
    assert (job.optimizer.lr, job.optimizer.lr_rule) == (5e-5, "none")
    assert job.ema.decay == 0.999  # what the file says nothing of is the recipe's


def test_the_preset_for_recorded_routes_has_the_team_s_rates():
    job = load_job(builtin_recipes()["bev"] / "job.yaml", ["preset=carla"]).job
    assert (job.precision, job.cudnn_search, job.batch_per_gpu) == ("tf32", "on", 32)
    for gpus, rate in ((1, 5e-5), (2, 1e-4), (4, 2e-4), (8, 4e-4)):
        assert scale_lr(job, 32 * gpus).value == pytest.approx(rate)
