"""Settings of other tools become the job that means the same."""

from pathlib import Path

import pytest

from phalanx.errors import UserError
from phalanx.job import load_job
from phalanx.job.importing import complete, import_command, import_file, job_text

FILES = Path(__file__).parents[2] / "fixtures" / "imports"


def fates(imported):
    return {line.theirs.partition(" = ")[0]: line.fate for line in imported.lines}


def test_training_arguments():
    imported = import_file(FILES / "training_args.json")
    assert imported.kind == "trainer"
    job = load_job({"recipe": "lora", **imported.job}).job
    assert (job.batch_per_gpu, job.gradient_accumulation, job.epochs) == (8, 4, 3)
    assert (job.optimizer.lr, job.optimizer.lr_rule, job.optimizer.clip_norm) == (3e-5, "none", 1.0)
    assert (job.schedule.name, str(job.schedule.warmup)) == ("cosine", "3%")
    assert (str(job.evaluate.every), str(job.checkpoint.every)) == ("200 steps", "400 steps")
    assert (job.evaluate.metric, job.evaluate.mode) == ("loss", "min")
    assert job.checkpoint.keep == 2, "at least two"
    assert (job.precision, job.activation_checkpointing) == ("fp32", "on")
    assert fates(imported)["load_best_model_at_end"] == "left"
    assert all("<HUB_TOKEN>" not in line.theirs for line in imported.lines)


def test_every_setting_is_somewhere_in_the_report():
    import json

    imported = import_file(FILES / "training_args.json")
    told = " ".join(line.theirs for line in imported.lines)
    given = json.loads((FILES / "training_args.json").read_text())
    missing = [
        key for key, value in given.items() if value is not None and value != {} and key not in told
    ]
    assert missing == []


def test_accelerate_counts_gpus_of_a_node():
    imported = import_file(FILES / "accelerate.yaml")
    assert imported.kind == "accelerate"
    assert imported.job == {"devices.gpus": 4, "precision": "bf16"}
    assert any("--nodes 2" in line.why for line in imported.lines)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "distributed_type: FSDP\nfsdp_config: {fsdp_offload_params: true, fsdp_version: 2}\n"
            "mixed_precision: 'no'\n",
            {"strategy": "fsdp", "fsdp.offload": True, "precision": "fp32"},
        ),
        (
            "distributed_type: DEEPSPEED\nnum_processes: 2\n"
            "deepspeed_config: {zero_stage: 3, offload_param_device: cpu, "
            "gradient_clipping: 1.0}\n",
            {
                "strategy": "deepspeed",
                "devices.gpus": 2,
                "deepspeed.stage": 3,
                "deepspeed.offload_parameters": True,
                "optimizer.clip_norm": 1.0,
            },
        ),
        ("compute_environment: X\ngpu_ids: '0,2'\n", {"devices.gpus": [0, 2]}),
        ("compute_environment: X\nuse_cpu: true\nnum_processes: 3\n", {"devices.cpu": 3}),
    ],
    ids=["fsdp", "deepspeed", "ids", "cpu"],
)
def test_accelerate_files(tmp_path, text, expected):
    file = tmp_path / "default_config.yaml"
    file.write_text(text)
    imported = import_file(file)
    assert imported.job == expected
    load_job({"recipe": "any", **imported.job})


def test_ultralytics():
    imported = import_file(FILES / "ultralytics.yaml")
    job = imported.job
    assert job["recipe"] == "detection"
    assert (job["options.image_size"], job["global_batch_size"], job["epochs"]) == (640, 64, 100)
    assert (job["optimizer.name"], job["optimizer.lr"], job["optimizer.nesterov"]) == (
        *("sgd", 0.01),
        True,
    )
    assert (job["schedule.name"], job["schedule.warmup"]) == ("cosine", "3 epochs")
    assert (job["devices.gpus"], job["loader.cache"]) == ([0, 1], "ram")


def test_ultralytics_leaves_the_rate_where_it_chooses_it_itself(tmp_path):
    file = tmp_path / "args.yaml"
    file.write_text("imgsz: 320\noptimizer: auto\nlr0: 0.01\n")
    imported = import_file(file)
    assert "optimizer.lr" not in imported.job
    assert fates(imported)["optimizer"] == "left"


def test_a_team_s_yaml_keeps_its_rule_for_the_rate():
    job = load_job({"recipe": "any", **import_file(FILES / "planner.yaml").job}).job
    assert (job.batch_per_gpu, job.loader.workers, job.epochs) == (32, 8, 500)
    assert (job.optimizer.lr, job.optimizer.lr_rule) == (5e-5, "linear")
    assert job.optimizer.betas == [0.95, 0.999]
    assert str(job.checkpoint.every) == "10 epochs"


def test_deepspeed_s_file_is_named_and_told():
    imported = import_file(FILES / "ds_config.json")
    assert imported.job["strategy"] == "deepspeed"
    told = {line.theirs: line.ours for line in imported.lines}
    assert told["gradient_clipping"] == "optimizer.clip_norm = 1.0"
    assert told["zero_optimization.stage"] == "deepspeed.stage = 2"


COMMANDS = {
    "torchrun --nproc_per_node=4 train.py --lr 1e-3 --batch-size 32": {
        "devices.gpus": 4,
        "optimizer.lr": 1e-3,
        "batch_per_gpu": 32,
    },
    "python -m torch.distributed.run --nnodes 2 --nproc-per-node 8 train.py": {"devices.gpus": 8},
    "accelerate launch --num_processes 2 --multi_gpu --mixed_precision bf16 main.py "
    "--train_batch_size=16 --dataloader_num_workers=8": {
        "devices.gpus": 2,
        "precision": "bf16",
        "global_batch_size": 16,
        "loader.workers": 8,
    },
    "accelerate launch --cpu --num_processes 2 main.py": {"devices.cpu": 2},
}


@pytest.mark.parametrize("line", COMMANDS)
def test_command_lines(line):
    imported = import_command(line.split())
    assert imported.job == COMMANDS[line]
    assert imported.script[0] in ("train.py", "main.py")
    assert imported.script == line.split()[line.split().index(imported.script[0]) :]


def test_a_command_line_with_a_file_of_accelerate():
    file = str(FILES / "accelerate.yaml")
    imported = import_command(["accelerate", "launch", "--config_file", file, "main.py"])
    assert imported.job == {"devices.gpus": 4, "precision": "bf16"}


def test_arguments_of_a_script_that_uses_trainer():
    words = (
        "torchrun --nproc_per_node 2 run.py --per_device_train_batch_size 4 --bf16 --max_steps 9"
    )
    imported = import_command(words.split())
    assert imported.job["batch_per_gpu"] == 4
    assert (imported.job["steps"], imported.job["precision"]) == (9, "bf16")


def test_secrets_are_not_shown(tmp_path):
    file = tmp_path / "a.json"
    file.write_text('{"per_device_train_batch_size": 1, "hub_token": "hf_abc", "fsdp": ""}')
    assert all("hf_abc" not in line.theirs for line in import_file(file).lines)
    words = ["torchrun", "train.py", "--api-key", "abc123"]
    assert all("abc123" not in line.theirs for line in import_command(words).lines)


@pytest.mark.parametrize("text", ["", "- 1\n- 2\n", "colour: blue\n"])
def test_what_is_of_no_kind_is_said(tmp_path, text):
    file = tmp_path / "x.yaml"
    file.write_text(text)
    with pytest.raises(UserError) as caught:
        import_file(file)
    assert caught.value.findings[0].slug == "import-kind"


def test_what_is_written_is_the_job(tmp_path):
    imported = import_file(FILES / "training_args.json")
    values = complete({**imported.job, "recipe": "any"}, None)
    file = tmp_path / "job.yaml"
    file.write_text(job_text(values, imported.place))
    assert load_job(file).job == load_job(values).job


def test_the_recipe_s_own_job_is_below(tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text(
        "recipe: any\nepochs: 25\nglobal_batch_size: 64\noptimizer: {lr: 0.1, lr_batch: 64}\n"
        "schedule: {warmup: 5%}\noptions: {width: 32}\n"
    )
    values = complete(
        {"recipe": "any", "steps": 9, "batch_per_gpu": 4, "optimizer.lr": 1e-3}, load_job(own)
    )
    job = load_job(values).job
    assert (job.epochs, job.steps, job.global_batch_size, job.batch_per_gpu) == (None, 9, None, 4)
    assert job.optimizer.lr_batch is None
    assert (str(job.schedule.warmup), job.options) == ("5%", {"width": 32})
