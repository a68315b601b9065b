"""Meta-World: experts show a task, a policy learns it within seconds and does it at places that
were never shown; an untrained one does not. Films can be played."""

import json
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from phalanx.engine.rank.closed_loop import run_benchmark
from phalanx.engine.rank.worker import run_worker
from phalanx.recipe import BenchmarkSettings
from phalanx.recipe.loading import load_recipe
from phalanx.recipes.policy.collecting import collect
from phalanx.recipes.policy.demonstrations import open_demonstrations
from phalanx.recipes.policy.options import PolicyCollecting
from phalanx.recipes.policy.simulator import (
    Arm,
    demonstration_seed,
    evaluation_seed,
    missing_simulator,
)
from tests.cli.command import run_cli
from tests.fixtures.event_lines import read_events
from tests.ranks.runs import make_run, outcomes

pytestmark = pytest.mark.ranks
EPISODES = 8


@pytest.fixture(scope="module")
def demonstrations(tmp_path_factory):
    assert not missing_simulator(), "metaworld comes with the extra `dev`"
    folder = tmp_path_factory.mktemp("reach") / "data"
    settings = PolicyCollecting(tasks=["reach-v3"], episodes=20, workers=2)
    return collect(settings, folder)


@pytest.fixture(scope="module")
def trained(demonstrations, tmp_path_factory):
    run = make_run(
        tmp_path_factory.mktemp("runs"),
        ranks=1,
        recipe="policy",
        name="reach",
        precision="fp32",
        steps=250,
        global_batch_size=64,
        micro_batch_size=64,
        optimizer={"lr": 0.002, "clip_norm": 1.0, "betas": [0.9, 0.99]},
        schedule={"name": "cosine", "warmup": "5%"},
        ema={"decay": 0.98, "warmup": True},
        evaluate={"every": None},
        logging={"every": 50, "tensorboard": False},
        options={"data": str(demonstrations.path)},
    )
    assert run_worker(run.path, handle_signals=False), outcomes(run)
    return run


@pytest.fixture
def ask_here(monkeypatch, tmp_path):
    """Without the child process, which costs an import of torch."""

    def ask(verb, question, **how):
        request, result = tmp_path / "request", tmp_path / "result"
        request.write_text(json.dumps(question))
        run_benchmark(request, result)
        return json.loads(result.read_text()), ""

    monkeypatch.setattr("phalanx.prepare.engine_child.ask_engine", ask)


def test_experts_show_what_they_can_do(demonstrations):
    found = open_demonstrations(demonstrations.path)
    assert [(task.name, bool(task.text)) for task in found.tasks] == [("reach-v3", True)]
    assert len(found.episodes) == 20
    assert any("of 22 episodes succeeded" in line for line in demonstrations.said)
    marks = found.states[found.episodes[:, 0], -3:]
    assert len(np.unique(marks.round(4), axis=0)) == 20  # a place of its own for each


def test_evaluations_begin_at_other_places():
    seeds = [[f(seed, block) for seed in range(50) for block in range(1000)]
             for f in (demonstration_seed, evaluation_seed)]  # fmt: skip
    assert not set(seeds[0]) & set(seeds[1])
    assert all(len(set(some)) == 50_000 for some in seeds)
    marks = [Arm("reach-v3", f(0, 0)).reset(0)[-3:] for f in (demonstration_seed, evaluation_seed)]
    assert np.abs(marks[0] - marks[1]).max() > 1e-3


def test_cameras_of_one_process_do_not_draw_into_each_other():
    # Without its own context an environment's picture has another one's meshes.
    arms = [Arm(task, 1, "corner2", 64) for task in ("reach-v3", "door-open-v3")]
    for arm in arms:
        arm.reset(0)
    first = [arm.picture() for arm in arms]
    for arm, before in zip(arms, first, strict=True):
        np.testing.assert_array_equal(arm.picture(), before)
    assert np.abs(first[0].astype(int) - first[1]).max() > 60


@pytest.mark.full
def test_a_short_training_is_far_above_no_training(trained, tmp_path):
    from safetensors.torch import save_file

    def rate(*words):
        answer = run_cli(
            "evaluate", *words, "--benchmark", "metaworld", "--episodes", str(EPISODES),
            "--max-steps", "100", "--workers", "2", "--json",
        )  # fmt: skip
        assert answer.code == 0, answer.err
        (task,) = json.loads(answer.out)["tasks"]
        assert (task["task"], task["episodes"]) == ("reach-v3", EPISODES)
        return task["successes"]

    job = json.loads((trained.checkpoints / "latest/state.json").read_text())["job"]
    fresh = load_recipe("policy", job["options"]).model()  # with statistics and descriptions
    save_file(fresh.state_dict(), tmp_path / "fresh.safetensors")
    named = [f"{key}={json.dumps(job['options'][key])}" for key in
             ("data", "tasks", "state_size", "action_size", "text_size", "seen_size")]  # fmt: skip
    untrained = rate(str(tmp_path / "fresh.safetensors"), "--recipe", "policy", *named)
    assert rate(str(trained.path)) >= untrained + EPISODES // 2
    (event,) = [e for e in read_events(trained.events) if e.kind == "evaluated"]
    assert event.data["weights"] == "average"


@pytest.mark.usefixtures("ask_here")
def test_a_film_shows_the_whole_episode_and_lies_in_the_run(trained, tmp_path):
    import imageio_ffmpeg

    answer = run_cli(
        "evaluate", str(trained.path), "--benchmark", "metaworld", "--tasks", "1", "--episodes",
        "1", "--max-steps", "24", "--horizon", "16", "--video", str(tmp_path / "films"),
    )  # fmt: skip
    assert answer.code == 0, answer.err
    (film,) = (tmp_path / "films").iterdir()
    reader = imageio_ffmpeg.read_frames(str(film))
    about = next(reader)
    assert (about["codec"], about["source_size"]) == ("h264", (256, 256))
    frames = [np.frombuffer(frame, np.uint8).astype(int) for frame in reader]
    assert len(frames) == 1 + 24 // 4
    assert np.abs(frames[-1] - frames[0]).max() > 60  # the arm has moved
    (event,) = [e for e in read_events(trained.events) if e.kind == "media"]
    assert (trained.path / event.data["file"]).read_bytes() == film.read_bytes()
    assert event.data["caption"].startswith("reach-v3, episode 0")


@pytest.mark.parametrize(
    ("words", "slug", "said"),
    [
        (["--benchmark", "metaworld", "--horizon", "17"], "policy-horizon", "foresees 16 actions"),
        (["--benchmark", "libero_90"], "policy-libero", "libero"),
        (["--benchmark", "meta"], "unknown-benchmark", "metaworld"),
    ],
)
@pytest.mark.usefixtures("ask_here")
def test_what_cannot_be_run_is_a_finding(trained, words, slug, said):
    if slug == "policy-libero" and find_spec("libero") is not None:
        pytest.skip("needs: no LIBERO")
    answer = run_cli("evaluate", str(trained.path), *words)
    assert answer.code == 2
    assert slug in answer.err
    assert said in answer.err


@pytest.mark.full
def test_a_policy_that_sees_is_shown_what_its_camera_sees(tmp_path):
    settings = PolicyCollecting(
        tasks=["reach-v3"], episodes=2, cameras=["corner2"], image_size=48, workers=1
    )
    done = collect(settings, tmp_path / "data")
    found = open_demonstrations(done.path, ["corner2"])
    assert found.images["corner2"].shape == (len(found.states), 48, 48, 3)
    first, length, _ = found.episodes[0].tolist()
    moved = found.images["corner2"][first].astype(int) - found.images["corner2"][first + length - 1]
    assert np.abs(moved).max() > 60
    options = {"data": str(done.path), "cameras": ["corner2"], "image_size": 48}
    recipe = load_recipe("policy", options)
    assert all(finding.severity == "note" for finding in recipe.check())
    model = recipe.model().eval()
    shown = []
    model.register_forward_pre_hook(lambda module, given: shown.append(given[0]["images"]))
    asked = BenchmarkSettings(
        tasks=None, episodes=1, max_steps=16, horizon=8, video=False, seed=0, workers=1
    )
    with torch.no_grad():
        (result,) = recipe.benchmark(model, "metaworld", asked).tasks
    assert (result.task, result.episodes) == ("reach-v3", 1)
    assert [images.shape for images in shown] == [(1, 1, 3, 48, 48)] * 2
    arm = Arm("reach-v3", evaluation_seed(0, 0), "corner2", 48)
    arm.reset(0)
    np.testing.assert_array_equal(shown[0][0, 0].permute(1, 2, 0), arm.picture())
