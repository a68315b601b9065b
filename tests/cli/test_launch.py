"""`phalanx launch` before the first rank: what it would run, and what it refuses."""

from pathlib import Path

import pytest

from phalanx.errors import UserError
from phalanx.run.launching import Share
from phalanx.scripts.environment import torchrun_variables
from phalanx.scripts.request import ScriptRequest, hide_secrets, prepare_script
from tests.cli.command import fixture_machine, run_cli


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('never run here')\n")
    return "train.py"


def test_all_that_torchrun_sets():
    # torch.distributed.elastic.agent.server.local_elastic_agent of torch 2.13, and NODE_RANK.
    names = """LOCAL_RANK RANK GROUP_RANK ROLE_RANK ROLE_NAME LOCAL_WORLD_SIZE WORLD_SIZE
    GROUP_WORLD_SIZE ROLE_WORLD_SIZE MASTER_ADDR MASTER_PORT TORCHELASTIC_RESTART_COUNT
    TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_RUN_ID TORCHELASTIC_USE_AGENT_STORE NODE_RANK"""
    share = Share(run=Path("runs/run"), ranks=4, attempt=1, port=29500)
    found = torchrun_variables(share, 2, max_restarts=3)
    assert set(found) == set(names.split())
    assert (found["RANK"], found["LOCAL_RANK"], found["WORLD_SIZE"]) == ("2", "2", "4")


def test_gpus_stay_visible_to_every_rank(script):
    machine = fixture_machine("8xa100")
    prepared = prepare_script(ScriptRequest(script=script, gpus=4), machine)
    assert prepared.ranks == 4
    assert "CUDA_VISIBLE_DEVICES" not in prepared.variables, "LOCAL_RANK picks, as with torchrun"
    named = prepare_script(ScriptRequest(script=script, gpus=[2, 5]), machine)
    assert named.variables["CUDA_VISIBLE_DEVICES"] == "2,5"
    assert prepare_script(ScriptRequest(script=script), machine).ranks == 8


def test_everything_wrong_is_said_at_once(script):
    answer = run_cli(
        *("launch", "--cpu", "0", "--python", "no-such-python", "--mixed-precision", "fp7"),
        *("--resume-with", "'open", "--deepspeed", "none.json", "trein.py"),
    )
    assert answer.code == 2
    for slug in ("number", "python", "precision", "resume", "file", "script"):
        assert f"error[launch-{slug}]" in answer.err
    assert "did you mean `train.py`?" in answer.err
    assert not Path("runs").exists(), "nothing is created"


@pytest.mark.parametrize("name", ["../other", "/other", "a/b", ".."])
def test_a_run_is_not_made_outside_of_its_folder(script, name):
    answer = run_cli("launch", "--cpu", "1", "--output", "runs", "--name", name, script)
    assert answer.code == 2
    assert "error[run-name]" in answer.err and name in answer.err
    assert sorted(p.name for p in Path().iterdir()) == ["train.py"]


def test_an_accelerate_file_maps_over(script, tmp_path):
    file = tmp_path / "accelerate_config.yaml"
    file.write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmixed_precision: bf16\n"
        "num_machines: 1\nnum_processes: 2\nuse_cpu: true\n"
        "fsdp_config:\n  fsdp_version: 2\n  fsdp_offload_params: false\n"
        "  fsdp_transformer_layer_cls_to_wrap: GPT2Block\n"
    )
    prepared = prepare_script(ScriptRequest(script=script, accelerate_config=file))
    assert prepared.ranks == 2
    assert {
        "ACCELERATE_MIXED_PRECISION": "bf16",
        "ACCELERATE_USE_FSDP": "true",
        "FSDP_VERSION": "2",
        "FSDP_OFFLOAD_PARAMS": "false",
        "FSDP_TRANSFORMER_CLS_TO_WRAP": "GPT2Block",
        "ACCELERATE_USE_CPU": "true",
    }.items() <= prepared.variables.items()
    answer = run_cli("launch", "--cpu", "3", "--accelerate-config", str(file), script)
    assert answer.code == 2
    assert "3 ranks are asked for, and 2 in" in answer.err


@pytest.mark.parametrize(
    ("processes", "per_node", "severity"),
    [(2, "2", None), (2, "a100:2", None), (1, "2", "warning"), (2, "1", "error")],
)
def test_an_accelerate_file_that_disagrees_with_slurm(
    script, tmp_path, monkeypatch, processes, per_node, severity
):
    file = tmp_path / "accelerate_config_single_node.yaml"
    file.write_text(f"num_machines: 1\nnum_processes: {processes}\n")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "1")
    monkeypatch.setenv("SLURM_GPUS_PER_NODE", per_node)
    request = ScriptRequest(script=script, accelerate_config=file)
    try:
        found = prepare_script(request, fixture_machine("2x4090")).findings
    except UserError as error:
        found = error.findings
    found = [finding for finding in found if finding.slug == "accelerate-slurm"]
    assert [finding.severity for finding in found] == ([severity] if severity else [])
    if severity == "warning":
        assert "starts 1 processes, Slurm was asked for 2 GPUs" in found[0].what


def test_a_deepspeed_file_maps_over(script, tmp_path):
    file = tmp_path / "ds_config.json"
    file.write_text('{"zero_optimization": {"stage": 2}}')
    request = ScriptRequest(script=script, cpu=1, deepspeed=file, gradient_accumulation=4)
    variables = prepare_script(request).variables
    assert variables["ACCELERATE_USE_DEEPSPEED"] == "true"
    assert variables["ACCELERATE_DEEPSPEED_CONFIG_FILE"] == str(file)
    assert variables["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] == "4"


def test_words_after_the_script_are_the_scripts(script):
    answer = run_cli(
        "launch", "--cpu", "1", "--dry-run", script, "--resume", "--cpu", "7", "-m", "x"
    )
    assert answer.code == 0, answer.err
    assert f"{script} --resume --cpu 7 -m x" in answer.out


def test_secrets_are_hidden():
    given = ["--api-key", "S3", "--hub_token=S3", "--epochs", "3", "--password", "--lr", "1"]
    hidden = ["--api-key", "***", "--hub_token=***", "--epochs", "3", "--password", "--lr", "1"]
    assert hide_secrets(given) == hidden
