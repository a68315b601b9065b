"""`--deepspeed FILE` and `strategy: deepspeed` on the command line, up to the plan."""

import json

import pytest

from phalanx.errors import ExitCode
from tests.cli.command import pretend_machine, run_cli
from tests.unit.job.test_deepspeed import G3

JOB = "recipe: digits\nepochs: 1\nglobal_batch_size: 64\n"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "ds_config.json").write_text(G3)
    return tmp_path


def plan(*arguments):
    answer = run_cli("plan", "job.yaml", "--json", *arguments)
    assert answer.code == 0, answer.err
    return json.loads(answer.out)["plan"]


def test_the_plan_has_stage_and_offload_with_reasons(monkeypatch):
    pretend_machine(monkeypatch, "2x4090")
    found = plan("--deepspeed", "ds_config.json")
    assert found["parallel"]["strategy"]["value"] == "deepspeed"
    assert found["parallel"]["zero_stage"] == {
        "value": 2,
        "reason": "deepspeed.stage = 2: optimizer state and gradients are spread over the ranks",
    }
    assert found["parallel"]["offload"]["value"] == "optimizer"
    assert "deepspeed.offload_optimizer = true" in found["parallel"]["offload"]["reason"]
    assert (found["numerics"]["precision"]["value"], found["devices"]["backend"]["value"]) == (
        "bf16",
        "nccl",
    )


def test_one_rank_stays_with_deepspeed_and_has_a_group():
    found = plan("--strategy", "deepspeed", "--cpu", "1", "deepspeed.stage=3")
    assert found["parallel"]["strategy"]["value"] == "deepspeed"
    assert (found["parallel"]["zero_stage"]["value"], found["devices"]["backend"]["value"]) == (
        3,
        "gloo",
    )
    assert found["parallel"]["offload"]["value"] is None


def test_a_strategy_beside_the_file_contradicts_it():
    answer = run_cli("plan", "job.yaml", "--deepspeed", "ds_config.json", "--strategy", "ddp")
    assert answer.code == ExitCode.USAGE
    assert "error[deepspeed-strategy]" in answer.err
    assert "--deepspeed" in answer.err
    assert "--strategy" in answer.err


def test_mps_is_refused(monkeypatch):
    pretend_machine(monkeypatch, "mps")
    answer = run_cli("plan", "job.yaml", "--strategy", "deepspeed")
    assert answer.code == ExitCode.USAGE
    assert "error[deepspeed-on-mps]" in answer.err


def test_the_arithmetic_of_the_file_meets_the_machine(folder, monkeypatch):
    pretend_machine(monkeypatch, "2x4090")
    sizes = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 8}
    for accumulation, is_right in ((4, True), (2, False)):
        content = {**sizes, "gradient_accumulation_steps": accumulation}
        (folder / "ds_config.json").write_text(json.dumps(content))
        answer = run_cli("plan", "job.yaml", "--deepspeed", "ds_config.json")
        assert (answer.code == 0) == is_right
        assert ("8 per forward x 2 micro-batches x 2 ranks = 32" in answer.err) != is_right


def test_without_the_package_nothing_starts(folder, monkeypatch):
    monkeypatch.setattr("phalanx.job.deepspeed_rules.find_spec", lambda name: None)
    before = sorted(folder.iterdir())
    answer = run_cli("train", "job.yaml", "--deepspeed", "ds_config.json")
    assert answer.code == ExitCode.USAGE
    assert answer.err.count("error[") == 1
    assert 'pip install "phalanx[deepspeed]"' in answer.err
    assert sorted(folder.iterdir()) == before
