"""`phalanx import`: a job file from another tool's settings, and a report."""

import json
from pathlib import Path

import pytest

from phalanx.cli.main import run
from phalanx.job import load_job

FILES = Path(__file__).parents[1] / "fixtures" / "imports"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_job_and_what_became_of_each_setting(capsys):
    assert run(["import", str(FILES / "planner.yaml"), "--recipe", "digits"]) == 0
    out = capsys.readouterr().out
    assert "dataloader.batch_size = 32" in out
    assert "no counterpart" in out
    assert "phalanx plan job.yaml" in out
    assert load_job(Path("job.yaml")).job.batch_per_gpu == 32


def test_nothing_is_overwritten(capsys):
    Path("job.yaml").write_text("mine")
    assert run(["import", str(FILES / "planner.yaml"), "--recipe", "digits"]) == 2
    assert "error[import-exists]" in capsys.readouterr().err
    assert Path("job.yaml").read_text() == "mine"


def test_without_a_recipe_nothing_is_written(capsys):
    line = "torchrun --nproc_per_node 2 train.py --lr 0.1"
    assert run(["import", *line.split()]) == 2
    said = capsys.readouterr()
    assert "optimizer.lr = 0.1" in said.out
    assert "error[import-recipe]" in said.err
    assert "phalanx launch --gpus 2 train.py --lr 0.1" in " ".join(said.err.split())
    assert not Path("job.yaml").exists()


def test_json(capsys):
    words = ["import", str(FILES / "accelerate.yaml"), "--recipe", "digits", "--json"]
    assert run(words) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["kind"] == "accelerate"
    assert {"theirs", "fate", "ours", "why"} == set(report["settings"][0])


def test_a_file_that_is_not_there(capsys):
    assert run(["import", "nothing.yaml"]) == 2
    assert "error[job-missing]" in capsys.readouterr().err
