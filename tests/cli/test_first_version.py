"""A recipe of version 0.1, whose exports, benchmark and weights stand on `Recipe` alone, does all
that it did."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from phalanx.codec import from_json, to_json
from phalanx.engine.rank.closed_loop import run_benchmark
from phalanx.engine.rank.worker import run_worker
from phalanx.recipe import BenchmarkSettings
from phalanx.recipe.questions import BenchmarkAnswer, BenchmarkQuestion
from tests.cli.command import run_cli
from tests.fixtures.event_lines import read_events
from tests.fixtures.export_here import answer_here
from tests.ranks.runs import FIXTURES, make_run, outcomes, weights

RECIPE = f"{FIXTURES / 'recipes' / 'first_version.py'}:First"

STORED = torch.full((24,), 7.0, dtype=torch.float64)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    file = tmp_path_factory.mktemp("base") / "base.safetensors"
    save_file({"layers.0.bias": STORED}, file)
    return file


@pytest.fixture(scope="module")
def trained(tmp_path_factory, base):
    run = make_run(
        tmp_path_factory.mktemp("runs"),
        ranks=1,
        threads=1,
        recipe=RECIPE,
        name="first",
        steps=4,
        options={"base": str(base), "cast": True},
        optimizer={"lr": 1e-6},
    )
    assert run_worker(run.path, handle_signals=False), outcomes(run)
    return run


def test_weights_samples_charts_and_files_of_training(trained):
    assert torch.allclose(weights(trained)["layers.0.bias"].double(), STORED, rtol=0.01)
    assert (trained.final_model / "own.safetensors").is_file()
    assert (trained.checkpoints / "latest" / "own.safetensors").is_file()
    kinds = {event.kind for event in read_events(trained.events)}
    assert {"samples", "media", "exported"} <= kinds


def test_its_own_form_is_exported(trained, monkeypatch, tmp_path):
    answer_here(monkeypatch)
    out = tmp_path / "out"
    answer = run_cli("export", str(trained.path), "--to", "doubled", "--out", str(out), "--json")
    assert answer.code == 0, answer.err
    made, plain = load_file(out / "own.safetensors"), weights(trained, "best")
    assert all(torch.equal(made[name], 2 * plain[name]) for name in plain)


def test_its_graph_has_its_names(trained, monkeypatch, tmp_path):
    answer_here(monkeypatch)
    out = tmp_path / "out"
    answer = run_cli(
        "export", str(trained.path), "--to", "torchscript", "--out", str(out), "--json"
    )
    assert answer.code == 0, answer.err
    assert [made["output"] for made in json.loads(answer.out)["compared"]["differences"]] == ["fit"]
    extra = {"classes": "", "phalanx": ""}
    torch.jit.load(out / "model.torchscript", _extra_files=extra)
    assert json.loads(extra["classes"]) == ["one", "two", "three"]
    assert json.loads(extra["phalanx"])["options"]["base"] == ""


def test_its_benchmark_runs(trained, tmp_path):
    request, result = tmp_path / "request", tmp_path / "result"
    question = BenchmarkQuestion(
        recipe=RECIPE,
        options={},
        file=trained.checkpoints / "latest" / "model.safetensors",
        benchmark=None,
        flags="--video",
        settings=BenchmarkSettings(None, None, None, None, video=False, seed=0, workers=1),
        video=None,
        device="cpu",
    )
    request.write_text(json.dumps(to_json(question)))
    run_benchmark(request, result)
    told = from_json(BenchmarkAnswer, json.loads(result.read_text()))
    assert [task.successes for task in told.tasks] == [1], told.findings
    assert told.benchmark == "sums"


def test_it_collects(tmp_path):
    out = tmp_path / "out"
    answer = run_cli("recipes", "collect", RECIPE, "episodes=3", "--out", str(out))
    assert answer.code == 0, answer.err
    assert "3 lines" in answer.out
    assert (out / "lines.txt").read_text() == "line\n" * 3


def test_a_plan_says_what_to_inherit(tmp_path):
    answer = run_cli("plan", RECIPE, "--batch-size", "4", "--epochs", "1", "--cpu", "1")
    assert answer.code == 0, answer.err
    said = answer.out + answer.err
    assert said.count("[recipe-interface]") == 1
    assert "class First(Recipe, " in said
