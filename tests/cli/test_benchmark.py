"""`phalanx evaluate --benchmark`: a trained policy acts in a simulator, without any data."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from phalanx.engine.rank.closed_loop import run_benchmark
from phalanx.engine.rank.worker import run_worker
from tests.cli.command import run_cli
from tests.fixtures.event_lines import read_events
from tests.ranks.runs import FIXTURES, make_run, outcomes

RECIPE = f"{FIXTURES / 'recipes' / 'steering.py'}:Steering"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    run = make_run(
        tmp_path_factory.mktemp("runs"),
        ranks=1,
        threads=1,
        recipe=RECIPE,
        name="steering",
        precision="fp32",
        steps=400,
        global_batch_size=128,
        micro_batch_size=128,
        optimizer={"lr": 0.01},
        evaluate={"every": None},
        logging={"every": 100, "tensorboard": False},
    )
    assert run_worker(run.path, handle_signals=False), outcomes(run)
    return run


@pytest.fixture
def ask_here(monkeypatch, tmp_path):
    """The child process costs an import of torch; one test has it."""

    def ask(verb, question, *, timeout_s, uses_gpu, say):
        assert (verb, uses_gpu) == ("benchmark", True)
        request, result = tmp_path / "request", tmp_path / "result"
        request.write_text(json.dumps(question))
        run_benchmark(request, result)
        return json.loads(result.read_text()), ""

    monkeypatch.setattr("phalanx.prepare.engine_child.ask_engine", ask)


def rates(told):
    return {task["task"]: task["successes"] / task["episodes"] for task in told["tasks"]}


def test_a_checkpoint_alone_acts_without_its_data(trained, tmp_path):
    shutil.copytree(trained.checkpoints / "latest", tmp_path / "policy")
    answer = run_cli(
        "evaluate", str(tmp_path / "policy"), "--benchmark", "marks", "--episodes", "40",
        "--video", str(tmp_path / "films"), "lost=true",
    )  # fmt: skip
    assert answer.code == 0, answer.err
    assert "95 % interval" in answer.out
    assert "40 of 40" in answer.out
    assert "91.2 - 100.0 %" in answer.out
    # Others stand below the model in each task, and are no part of its figures.
    assert [line.split()[0] for line in answer.out.splitlines() if " of 40" in line] == [
        name for task in ("near", "far", "behind") for name in (task, "resting")
    ]
    assert "over all: success 1" in answer.out
    films = sorted((tmp_path / "films").iterdir())
    assert [film.name for film in films] == ["behind.png", "far.png", "near.png"]
    assert films[0].read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("ask_here")
def test_what_was_learned_shows_in_the_loop_and_in_the_events(trained, tmp_path):
    answer = run_cli("evaluate", str(trained.path), "--benchmark", "marks", "--json")
    assert answer.code == 0, answer.err
    told = json.loads(answer.out)
    assert rates(told) == {"near": 1.0, "far": 1.0, "behind": 1.0}
    assert told["metrics"]["success"] == 1.0
    assert told["metrics"]["gap"] < 0.1
    (event,) = [e for e in read_events(trained.events) if e.kind == "evaluated"]
    assert (event.data["benchmark"], event.data["step"]) == ("marks", 400)
    assert event.data["tasks"] == told["tasks"]
    assert event.data["baselines"] == told["baselines"]
    assert told["baselines"]["resting"][0]["successes"] == 0
    assert told["tasks"][0]["low"] == pytest.approx(0.8389, abs=1e-4)  # Wilson of 20 in 20

    from phalanx.recipe.loading import load_recipe

    torch.manual_seed(0)
    fresh = load_recipe(RECIPE, {}).model().state_dict()
    torch.save(fresh, tmp_path / "fresh.pt")
    path = str(tmp_path / "fresh.pt")
    answer = run_cli("evaluate", path, "--recipe", RECIPE, "--benchmark", "marks", "--json")
    assert sum(rates(json.loads(answer.out)).values()) < 0.5


@pytest.mark.usefixtures("ask_here")
def test_settings_reach_the_simulator(trained):
    def told(*options):
        answer = run_cli("evaluate", str(trained.path), "--benchmark", "marks", *options, "--json")
        assert answer.code == 0, answer.err
        return json.loads(answer.out)["tasks"]

    (one,) = told("--tasks", "1", "--episodes", "7")
    assert (one["task"], one["episodes"]) == ("near", 7)
    assert told("--tasks", "1", "--episodes", "7") == [one]  # the same seed, the same roll-outs
    assert told("--tasks", "1", "--episodes", "7", "--seed", "5") != [one]
    assert told("--max-steps", "2")[1]["successes"] == 0
    assert told("--horizon", "4")[1]["figures"] != told("--horizon", "1")[1]["figures"]


@pytest.mark.usefixtures("ask_here")
@pytest.mark.parametrize(
    ("options", "slug", "code"),
    [
        (["--benchmark", "mark"], "unknown-benchmark", 2),
        (["--benchmark", "marks", "broken=true"], "benchmark-failed", 1),
        (["--benchmark", "marks", "--horizon", "9"], "horizon", 2),
        (["--benchmark", "marks", "--gpus", "64"], "no-such-gpu", 2),
    ],
)
def test_what_is_wrong_is_a_finding(trained, options, slug, code):
    if slug == "no-such-gpu" and torch.cuda.is_available():
        options = [*options[:3], "64,"]
    answer = run_cli("evaluate", str(trained.path), *options)
    assert answer.code == code
    assert f"error[{slug}]" in answer.err


@pytest.mark.full
@pytest.mark.usefixtures("ask_here")
def test_a_recipe_may_want_to_be_driven_after_its_test_split(trained, tmp_path):
    driven = RECIPE.replace(":Steering", ":Steered")
    words = ["evaluate", str(trained.path), "--recipe", driven, "--cpu", "1"]
    told = json.loads(run_cli(*words, "--json").out)
    assert told["metrics"]["loss"] < 0.5
    assert told["after"]["metrics"]["success"] == 1.0
    assert "after" not in json.loads(run_cli(*words, "--benchmark", "none", "--json").out)
    answer = run_cli(*words, "broken=true")  # the figures of the test split stand by themselves
    assert answer.code == 0
    assert "loss" in answer.out
    assert "warning[benchmark-failed]" in answer.err


@pytest.mark.usefixtures("ask_here")
def test_roll_outs_without_a_benchmark_are_of_the_usual_one(trained, tmp_path):
    driven = RECIPE.replace(":Steering", ":Steered")
    films = tmp_path / "films"
    words = ["evaluate", str(trained.path), "--recipe", driven, "--video", str(films)]
    answer = run_cli(*words, "--episodes", "3")
    assert answer.code == 0, answer.err
    assert "3 of 3" in answer.out and "metric" not in answer.out  # not the test split
    assert len(list(films.iterdir())) == 3
    assert "note[usual-benchmark]: run in the benchmark `marks`" in answer.err
    said = " ".join(answer.err.split())
    assert "--episodes, --video: for roll-outs; --benchmark was not given" in said
    assert "default_benchmark = marks" in said
    told = json.loads(run_cli(*words, "--json").out)
    assert told["benchmark"] == "marks" and "after" not in told


@pytest.mark.usefixtures("ask_here")
def test_films_take_the_place_of_nothing(trained, tmp_path):
    films = tmp_path / "films"
    words = ["evaluate", str(trained.path), "--benchmark", "marks", "--video", str(films), "--json"]
    first = json.loads(run_cli(*words, "--episodes", "3").out)["media"]
    before = {path: path.read_bytes() for path in films.iterdir()}
    assert set(map(str, before)) == set(first)
    second = json.loads(run_cli(*words, "--episodes", "3", "--seed", "9").out)["media"]
    assert not set(first) & set(second)
    assert {path: path.read_bytes() for path in before} == before
    kept = [event.data for event in read_events(trained.events) if event.kind == "media"]
    told = {event["file"]: (trained.path / event["file"]).read_bytes() for event in kept}
    assert {Path(path).read_bytes() for path in (*first, *second)} <= set(told.values())


@pytest.mark.usefixtures("ask_here")
def test_a_recipe_without_a_usual_benchmark_names_those_it_has(trained, tmp_path):
    answer = run_cli("evaluate", str(trained.path), "--video", str(tmp_path / "films"))
    assert answer.code == 2
    assert "error[no-benchmark]: --video: of no use without --benchmark" in answer.err
    assert "fix: --benchmark marks" in answer.err
    assert not (tmp_path / "films").exists()
