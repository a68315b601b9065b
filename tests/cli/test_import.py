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


G4 = """
data: {batch_size: 4, num_workers: 8}
training: {num_epochs: 50, learning_rate: 1.25e-6, warmup_steps: 500}
"""


def test_the_job_says_what_the_file_says_and_not_what_the_recipe_says(capsys):
    Path("base_config.yaml").write_text(G4)
    assert run(["import", "base_config.yaml", "--recipe", "digits"]) == 0
    job = load_job(Path("job.yaml")).job
    assert (job.batch_per_gpu, job.global_batch_size) == (4, None)
    assert (job.optimizer.lr, str(job.schedule.warmup), job.epochs) == (1.25e-6, "500 steps", 50)
    assert "0.003" not in Path("job.yaml").read_text()


def test_what_the_settings_do_not_state_is_said(capsys):
    Path("base_config.yaml").write_text("training: {num_epochs: 50}\n")
    assert run(["import", "base_config.yaml", "--recipe", "digits", "--json"]) == 0
    lines = json.loads(capsys.readouterr().out)["settings"]
    told = {line["ours"]: line["fate"] for line in lines}
    assert told["optimizer.lr = 0.003"] == told["global_batch_size = 64"] == "unstated"
    assert told["epochs = 50"] == "taken"


def test_what_cannot_be_carried_ends_the_command(capsys):
    Path("c.yaml").write_text(f"{G4}odd: {{rate: 3, knob: 5}}\nlr_scheduler: rex\n")
    words = ["import", "c.yaml", "--recipe", "digits"]
    assert run(words) == 2
    said = capsys.readouterr().err
    assert all(text in said for text in ("odd.rate = 3", "odd.knob = 5", "c.yaml:4", "rex"))
    assert "--leave odd" in said
    assert not Path("job.yaml").exists()
    assert run([*words, "--leave", "odd", "--leave", "lr_scheduler"]) == 0
    assert load_job(Path("job.yaml")).job.optimizer.lr == 1.25e-6


def test_a_job_that_breaks_a_rule_is_not_written(capsys):
    Path("c.yaml").write_text("epochs: 3\nwarmup_epochs: 9\nbatch_size: 2\n")
    assert run(["import", "c.yaml", "--recipe", "digits"]) == 2
    assert "error[long-warmup]" in capsys.readouterr().err
    assert not Path("job.yaml").exists()


def test_several_nodes_are_in_the_lines_to_paste(capsys):
    line = "torchrun --nnodes 2 --nproc_per_node 4 --rdzv_endpoint h:29400 t.py --lr 0.1"
    assert run(["import", *line.split(), "--recipe", "digits"]) == 0
    said = capsys.readouterr().out
    assert "phalanx train job.yaml --nodes 2" in said
    assert "phalanx launch --gpus 4 --nodes 2 --rendezvous h:29400 t.py --lr 0.1" in said


def test_a_preset_of_the_recipe_is_the_job_below(capsys):
    line = "python t.py --config paper_r64 --learning-rate 3e-5"
    assert run(["import", *line.split(), "--recipe", "lora"]) == 0
    job = load_job(Path("job.yaml")).job
    assert (job.options["r"], job.global_batch_size, job.optimizer.lr) == (64, 64, 3e-5)
