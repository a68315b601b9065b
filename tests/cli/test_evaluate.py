"""`phalanx evaluate`: what training found for the same weights, wherever they lie."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from phalanx.errors import UserError
from phalanx.prepare.trained_model import find_trained
from phalanx.verbs.evaluate import evaluate_trained
from phalanx.verbs.export import Settings, export_trained
from tests.cli.command import run_cli
from tests.fixtures.event_lines import read_events
from tests.fixtures.export_here import answer_here
from tests.fixtures.trained_digits import train_digits

GOLDEN = Path(__file__).parents[1] / "golden" / "run-0.1"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train_digits(tmp_path_factory.mktemp("runs"), logging={"every": 1})


def recorded(run, step):
    return [
        event.data["metrics"]
        for event in read_events(run.events)
        if event.kind == "evaluate" and event.data["step"] == step
    ][-1]


def slugs_of(call):
    with pytest.raises(UserError) as caught:
        call()
    return [finding.slug for finding in caught.value.findings], caught.value.findings[0]


@pytest.mark.ranks
def test_a_run_gives_what_training_recorded_to_the_bit(trained):
    answer = run_cli("evaluate", str(trained.path), "--checkpoint", "23")
    assert answer.code == 0, answer.err
    assert "the same as in training, to the last bit" in answer.out
    assert "checkpoint-23 (averaged weights), step 23" in answer.out
    (event,) = [e for e in read_events(trained.events) if e.kind == "evaluated"]
    assert event.writer == "evaluate"
    assert event.data["metrics"] == recorded(trained, 23)
    assert event.data["file"] == "checkpoints/checkpoint-23/ema/model.safetensors"
    assert (event.data["samples"], event.data["is_same"]) == (360, True)
    told = json.loads(run_cli("watch", str(trained.path), "--json").out)
    assert [found["metrics"] for found in told["evaluations"]] == [event.data["metrics"]]
    board = EventAccumulator(str(trained.tensorboard))
    board.Reload()
    (point,) = board.Scalars("evaluated/accuracy")
    accuracy = pytest.approx(event.data["metrics"]["accuracy"])
    assert (point.step, point.value) == (23, accuracy)


@pytest.mark.ranks
def test_a_checkpoint_alone_on_two_ranks_gives_the_same(trained, tmp_path, monkeypatch):
    shutil.copytree(trained.checkpoints / "checkpoint-46", tmp_path / "alone")
    monkeypatch.chdir(tmp_path)
    answer = run_cli("evaluate", "alone", "--cpu", "2", "--json")
    assert answer.code == 0, answer.err
    told = json.loads(answer.out)
    assert told["metrics"] == told["recorded"] == recorded(trained, 46)
    assert (told["is_same"], told["where"]) == (True, "2 CPU processes, fp32")
    assert (told["run"], told["step"], told["findings"]) == (None, 46, [])


@pytest.mark.ranks
def test_a_checkpoint_of_an_earlier_version_is_enough_alone(tmp_path):
    shutil.copytree(GOLDEN / "checkpoints" / "checkpoint-46", tmp_path / "old")
    done = evaluate_trained(str(tmp_path / "old" / "model.safetensors"))
    events = [e for e in read_events(GOLDEN / "events") if e.kind == "evaluate"]
    (then,) = [e.data["metrics"] for e in events if e.data["step"] == 46]
    assert done.samples == 360
    assert done.metrics == pytest.approx(then, rel=1e-5)
    assert done.recorded is None  # it does not carry them, and lies in no run
    found = find_trained(str(GOLDEN / "checkpoints" / "checkpoint-46"), command="")
    assert found.recorded == then  # where it lies in one, they are there
    assert found.plan.evaluation.evaluate_batch_size.value


@pytest.mark.ranks
def test_an_onnx_file_gives_the_same_metrics_on_the_same_split(trained, tmp_path, monkeypatch):
    answer_here(monkeypatch)
    # Of 7 samples at a time, which 360 does not divide by: the rest must not count.
    export_trained(str(trained.path), form="onnx", settings=Settings(batch=7), out=tmp_path / "o")
    monkeypatch.chdir(tmp_path)
    answer = run_cli("evaluate", "o/model.onnx", "--cpu", "2", "--json")
    assert answer.code == 0, answer.err
    told = json.loads(answer.out)
    state = json.loads((trained.checkpoints / "best" / "state.json").read_text())
    assert told["recorded"] == state["metrics"]
    assert told["samples"] == 360
    assert told["metrics"] == pytest.approx(state["metrics"], rel=1e-5)
    assert [f["slug"] for f in told["findings"]] == []


@pytest.mark.ranks
@pytest.mark.full  # `export` reads such files through the same function, and is always tested
def test_a_malicious_file_is_not_executed(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "executed"),)

    torch.save({"weights": Evil()}, tmp_path / "evil.pt")
    slugs, _ = slugs_of(lambda: evaluate_trained(str(tmp_path / "evil.pt"), recipe="digits"))
    assert slugs[0] == "init-unsafe"
    assert not (tmp_path / "executed").exists()


def test_what_is_meant_is_found_without_running_anything(trained, tmp_path):
    average = trained.checkpoints / "checkpoint-23" / "ema" / "model.safetensors"
    found = find_trained(str(average), command="phalanx evaluate")
    assert (found.weights, found.step) == ("average", 23)
    assert found.recorded == recorded(trained, 23)
    raw = find_trained(str(average.parents[1] / "model.safetensors"), command="")
    assert (raw.weights, raw.recorded) == ("raw", None)  # they were not what was evaluated
    other = find_trained(str(trained.path), ["width=4"], command="")
    assert (other.job.options["width"], other.recorded) == (4, None)
    assert find_trained(str(trained.path), command="").job_hash == found.job_hash
    assert other.job_hash != found.job_hash


def test_a_recipe_that_is_not_here_is_said_with_what_to_bring(trained, tmp_path):
    folder = tmp_path / "alone"
    shutil.copytree(trained.checkpoints / "checkpoint-46", folder)
    state = json.loads((folder / "state.json").read_text())
    state["job"]["recipe"] = "/nowhere/mine.py:Mine"
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "manifest.json").unlink()
    slugs, _ = slugs_of(lambda: find_trained(str(folder), command="phalanx evaluate"))
    assert slugs == ["no-run"]  # without its manifest it is no checkpoint
    from phalanx.run.checkpoints import _write_manifest

    _write_manifest(folder, 46, None)
    slugs, finding = slugs_of(lambda: find_trained(str(folder), command="phalanx evaluate"))
    assert slugs == ["recipe-elsewhere"]
    assert finding.fix.endswith("--recipe FILE.py:Mine")
    assert find_trained(str(folder), command="", recipe="digits").job.recipe == "digits"


def test_options_of_a_benchmark_want_a_benchmark():
    words = ("--benchmark", "none", "--tasks", "2", "--max-steps", "9")
    answer = run_cli("evaluate", "anything", *words)
    assert answer.code == 2
    assert "--tasks, --max-steps: of no use with --benchmark none" in answer.err
