"""Settings of other tools become the job that means the same."""

import json
import re
from pathlib import Path

import pytest
import yaml

from phalanx.errors import UserError
from phalanx.job import check_job, load_job
from phalanx.job.importing import (
    Asked,
    complete,
    import_command,
    import_file,
    job_text,
    vocabulary,
)
from phalanx.recipe.loading import builtin_recipes

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
    assert any("load_best_model_at_end" in x.theirs and x.fate == "left" for x in imported.lines)
    assert all("<HUB_TOKEN>" not in line.theirs for line in imported.lines)


def test_every_setting_is_somewhere_in_the_report():
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


def test_a_team_s_yaml_keeps_its_rate_on_any_number_of_gpus():
    job = load_job({"recipe": "any", **import_file(FILES / "planner.yaml").job}).job
    assert (job.batch_per_gpu, job.loader.workers, job.epochs) == (32, 8, 500)
    assert (job.optimizer.lr, job.optimizer.lr_rule) == (5e-5, "none")
    assert job.optimizer.betas == [0.95, 0.999]
    assert str(job.checkpoint.every) == "10 epochs"


def test_deepspeed_s_file_is_named_and_told():
    imported = import_file(FILES / "ds_config.json")
    assert imported.job["strategy"] == "deepspeed"
    told = {line.theirs: line.ours for line in imported.lines}
    assert told["gradient_clipping = 1.0"] == "optimizer.clip_norm = 1.0"
    assert told["zero_optimization.stage = 2"] == "deepspeed.stage = 2"


COMMANDS = {
    "torchrun --nproc_per_node=4 train.py --lr 1e-3 --batch-size 32": {
        "devices.gpus": 4,
        "optimizer.lr": 1e-3,
        "optimizer.lr_rule": "none",
        "batch_per_gpu": 32,
    },
    "python -m torch.distributed.run --nnodes 2 --nproc-per-node 8 train.py": {"devices.gpus": 8},
    "accelerate launch --num_processes 2 --multi_gpu --mixed_precision bf16 main.py "
    "--train_batch_size=16 --dataloader_num_workers=8": {
        "devices.gpus": 2,
        "precision": "bf16",
        "batch_per_gpu": 16,
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


def imported_yaml(tmp_path, text, **asked):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    return import_file(file, asked=Asked(**asked))


def unplaced(imported):
    return {finding.what.partition("`: ")[0].strip("`"): finding for finding in imported.findings}


NUMBERS = {
    "5e-5": 5e-5,
    "5.0e-5": 5e-5,
    '"3e-4"': 3e-4,
    "2_000": 2000,
    "'1_000'": 1000,
    "1e3": 1000,
}


@pytest.mark.parametrize("text", NUMBERS)
def test_a_number_is_read_however_it_is_written(tmp_path, text):
    job = imported_yaml(tmp_path, f"optimizer: {{lr: {text}}}\nsteps: 7\n").job
    assert job["optimizer.lr"] == pytest.approx(NUMBERS[text])
    assert isinstance(job["optimizer.lr"], (int, float))


DEVICES = {
    "[0, 1]": {"devices.gpus": [0, 1]},
    "['0', '1']": {"devices.gpus": [0, 1]},
    "'0,1'": {"devices.gpus": [0, 1]},
    "0": {"devices.gpus": [0]},
    "cuda:0": {"devices.gpus": [0]},
    "cuda:2,3": {"devices.gpus": [2, 3]},
    "cuda": {"devices.gpus": 1},
    "cpu": {"devices.cpu": 1},
    "mps": {},
    "-1": {"devices.gpus": 1},
    "[-1, -1]": {"devices.gpus": 2},
    "null": {},
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("head", ["imgsz: 320\n", "lr: 0.1\n"], ids=["ultralytics", "yaml"])
def test_devices_in_all_their_spellings(tmp_path, head, device):
    imported = imported_yaml(tmp_path, f"{head}device: {device}\n")
    assert {k: v for k, v in imported.job.items() if k.startswith("devices")} == DEVICES[device]
    assert imported.findings == []


COUNTS = {"4": 4, "'2'": 2, "[1, 3]": [1, 3], "-1": "all", "auto": None, "[-1]": "all"}


@pytest.mark.parametrize("count", COUNTS)
def test_devices_of_lightning(tmp_path, count):
    imported = imported_yaml(
        tmp_path, f"trainer: {{devices: {count}, max_epochs: 3}}\nmodel: {{a: 1}}\n"
    )
    assert imported.kind == "lightning"
    assert imported.job.get("devices.gpus") == COUNTS[count]


REFUSED = {
    "warmup_strategy_steps: 5": "warmup_strategy_steps = 5",
    "my_factor: 0.3": "my_factor = 0.3",
    "num_train_epochs: 1.5": "num_train_epochs = 1.5",
    "lr_scheduler_type: inverse_sqrt": 'lr_scheduler_type = "inverse_sqrt"',
    "optimizer: lion": 'optimizer = "lion"',
    "precision: bf16-true": 'precision = "bf16-true"',
    "learning_rate: ${oc.env:LR}": 'learning_rate = "${oc.env:LR}"',
    "label_smoothing: 0.1": "label_smoothing = 0.1",
    "ema: {update_after: 100}": "ema.update_after = 100",
    "blr: 1e-3": "blr = 0.001",
    "use_8bit_adam: true": "use_8bit_adam = true",
    "data_seed: 3": "data_seed = 3",
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_cannot_be_carried_is_named_with_its_line(tmp_path, line):
    text = f"batch_size: 4\n{line}\n"
    found = unplaced(imported_yaml(tmp_path, text))
    assert list(found) == [REFUSED[line]]
    finding = found[REFUSED[line]]
    assert finding.slug == "import-unplaced"
    assert "config.yaml:2" in finding.why
    key = REFUSED[line].partition(" = ")[0]
    assert f"--leave {key}" in finding.fix
    assert imported_yaml(tmp_path, text, leave=[key]).findings == []


def test_two_values_of_one_thing_are_both_named(tmp_path):
    text = "optimizer: {lr: 1e-4}\nmodel: {lr: 1e-5}\nmax_steps: 10\nepochs: 3\n"
    assert set(unplaced(imported_yaml(tmp_path, text))) == {
        *("optimizer.lr = 0.0001", "model.lr = 1e-05"),
        *("max_steps = 10", "epochs = 3"),
    }


def test_a_section_is_left_out_but_not_what_has_a_place_in_it(tmp_path):
    text = "odd: {lr: 1e-4, gamma: 3, delta: [1, 2]}\nbatch_size: 2\n"
    assert "--leave odd" in next(iter(imported_yaml(tmp_path, text).findings)).fix
    imported = imported_yaml(tmp_path, text, leave=["odd"])
    assert (imported.findings, imported.job["optimizer.lr"]) == ([], 1e-4)


@pytest.mark.parametrize(
    ("means", "expected"),
    [
        (None, {"batch_per_gpu": 16, "gradient_accumulation": 2}),
        ("per-gpu", {"batch_per_gpu": 16, "gradient_accumulation": 2}),
        ("global", {"global_batch_size": 16, "gradient_accumulation": 2}),
    ],
)
def test_what_a_batch_counts_can_be_stated(means, expected):
    line = "accelerate launch --num_processes 2 main.py --train_batch_size=16 "
    words = f"{line} --gradient_accumulation_steps=2".split()
    imported = import_command(words, Asked(batch_means=means))
    assert {k: imported.job[k] for k in expected} == expected
    assert sum("batch" in key for key in imported.job) == 1
    assert (means is None) == any("`--batch-means global` if" in x.why for x in imported.lines)


def test_batches_of_accelerate_that_are_split(tmp_path):
    text = "batch_size: 32\ngradient_accumulation_steps: 2\nsplit_batches: true\n"
    job = imported_yaml(tmp_path, text).job
    assert (job["global_batch_size"], job["gradient_accumulation"]) == (64, 2)


LAUNCHED = {
    "accelerate launch --num_processes 2 --multi_gpu --mixed_precision bf16 main.py --lr 1": (
        "phalanx launch --gpus 2 --mixed-precision bf16 main.py --lr 1"
    ),
    "torchrun --nnodes=2 --nproc_per_node=4 --node_rank=1 --master_addr=h --master_port=81 t.py": (
        "phalanx launch --gpus 4 --nodes 2 --node-rank 1 --rendezvous h:81 t.py"
    ),
    "torchrun --nnodes 2 --nproc-per-node 8 --rdzv_backend c10d --rdzv_endpoint h:1 -m a.b -x": (
        "phalanx launch --gpus 8 --nodes 2 --rendezvous h:1 -m a.b -x"
    ),
    "CUDA_VISIBLE_DEVICES=1 NCCL_DEBUG=INFO python -u train.py": (
        "env NCCL_DEBUG=INFO phalanx launch --gpus 1, train.py"
    ),
    "accelerate launch --cpu --num_processes 2 --gradient_accumulation_steps 4 -m a.b": (
        "phalanx launch --cpu 2 --gradient-accumulation 4 -m a.b"
    ),
}


@pytest.mark.parametrize("line", LAUNCHED)
def test_the_script_as_it_is_keeps_all_that_the_line_states(line):
    imported = import_command(line.split())
    assert " ".join(imported.launch.words(imported.job, imported.nodes)) == LAUNCHED[line]
    assert imported.launch.not_carried == []


def test_what_launch_has_no_word_for_is_said():
    line = "accelerate launch --use_fsdp --fsdp_offload_params true main.py"
    assert import_command(line.split()).launch.not_carried == [
        *("--use_fsdp True", "--fsdp_offload_params True"),
    ]


SCHEDULERS = {
    "WarmupLR": ("constant", {"warmup_num_steps": 50, "warmup_type": "linear"}),
    "WarmupDecayLR": ("linear", {"warmup_num_steps": 50, "total_num_steps": 900}),
    "WarmupCosineLR": ("cosine", {"warmup_num_steps": 50, "cos_min_ratio": 0.2}),
}


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_deepspeed_s_schedulers_win_over_the_recipe_s_own(tmp_path, kind):
    shape, params = SCHEDULERS[kind]
    file = tmp_path / "ds.json"
    settings = {"zero_optimization": {"stage": 2}, "scheduler": {"type": kind, "params": params}}
    file.write_text(json.dumps(settings))
    imported = import_file(file)
    base = load_job(builtin_recipes()["lora"] / "job.yaml")
    job = load_job(complete({**imported.job, "recipe": "lora"}, base)).job
    assert (job.schedule.name, str(job.schedule.warmup)) == (shape, "50 steps")
    assert job.steps == params.get("total_num_steps")
    assert job.schedule.min_lr_ratio == params.get("cos_min_ratio", 0)


CADENCES = {
    "epochs: 9\nsave_every: 3": {"checkpoint.every": "3 epochs"},
    "max_steps: 90\nsave_every: 3": {"checkpoint.every": "3 steps"},
    "epochs: 9\nevals_per_epoch: 4": {"evaluate.every": "0.25 epochs"},
    "max_steps: 500\neval_steps: 0.1": {"evaluate.every": "50 steps"},
    "epochs: 2\neval_strategy: 'no'\neval_steps: 5": {"evaluate.every": None},
    "epochs: 2\nsave_strategy: epoch": {"checkpoint.every": "1 epochs"},
    "trainer: {val_check_interval: 0.5, max_epochs: 2}": {"evaluate.every": "0.5 epochs"},
    "trainer: {val_check_interval: 64, accumulate_grad_batches: 2, max_epochs: 2}": {
        "evaluate.every": "32 steps"
    },
}


@pytest.mark.parametrize("text", CADENCES)
def test_how_often_something_happens(tmp_path, text):
    imported = imported_yaml(tmp_path, f"{text}\nbatch_size: 8\n")
    found = {k: v for k, v in imported.job.items() if k.endswith(".every")}
    assert (found, imported.findings) == (CADENCES[text], [])
    job = load_job({"recipe": "digits", **imported.job})
    assert not [f for f in check_job(job, known_recipes=["digits"]) if f.severity == "error"]


PRECISIONS = {
    "precision: 16-mixed": "fp16",
    "precision: bf16-mixed": "bf16",
    "precision: 32": "fp32",
    "precision: '32-true'": "fp32",
    "precision: 64": "fp64",
    "mixed_precision: no": "fp32",
    "mixed_precision: 'no'": "fp32",
    "mixed_precision: bf16": "bf16",
    "bf16: true\ntf32: true": "bf16",
    "bf16: auto": "auto",
    "bf16: false\nfp16: false": "fp32",
    "bf16: yes": "bf16",
    "tf32: true": "tf32",
    "amp: true\namp_dtype: bfloat16": "bf16",
    "use_amp: false": "fp32",
    "tf32: false": None,
}


@pytest.mark.parametrize("text", PRECISIONS)
def test_precisions(tmp_path, text):
    imported = imported_yaml(tmp_path, f"lr: 0.1\n{text}\n")
    assert (imported.job.get("precision"), imported.findings) == (PRECISIONS[text], [])


def test_deepspeed_s_warm_up_that_a_job_has_not_is_refused_or_left_out(tmp_path):
    file = tmp_path / "ds.json"
    params = {"warmup_min_lr": 1e-6, "warmup_type": "log", "warmup_num_steps": 10}
    settings = {"zero_optimization": {"stage": 2}}
    file.write_text(json.dumps({**settings, "scheduler": {"type": "WarmupLR", "params": params}}))
    (finding,) = import_file(file).findings
    assert "warmup_min_lr" in finding.what
    assert "warmup_type" in finding.what
    leave = ["scheduler.params.warmup_min_lr", "scheduler.params.warmup_type"]
    imported = import_file(file, asked=Asked(leave=leave))
    assert imported.findings == []
    assert imported.job["deepspeed.config"]["scheduler"]["params"] == {"warmup_num_steps": 10}


def test_a_preset_is_found_by_its_name():
    imported = import_command(["python", "t.py", "--config", "paper_r64"], Asked(recipe="lora"))
    assert (imported.preset, imported.findings) == ("paper_r64", [])
    other = import_command(["python", "t.py", "--config", "paper_r65"], Asked(recipe="lora"))
    assert "paper_r64" in other.findings[0].why


def test_a_secret_is_in_no_line_and_in_no_job():
    words = "python t.py --lr 1e-3 --api-key abc123 hub_token=abc123 --wandb.api_key=abc123"
    imported = import_command(words.split())
    assert "abc123" not in imported.place
    assert all("abc123" not in line.theirs for line in imported.lines)


def test_every_meaning_of_the_vocabulary_is_used_by_a_rule():
    folder = Path(vocabulary.__file__).parent
    rules = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    words = vocabulary.tables().words
    meanings = {meaning for section in words.values() for meaning in section.values()}
    by_parts = {"save", "saves", "eval", "evals", "lora", "detection", "warmup", "zero"}
    lost = [
        m for m in meanings if f'"{m}"' not in rules and re.split(r"[._]", m)[0] not in by_parts
    ]
    assert set(lost) <= {"max_time"}, "refused, as no rule reads it"


def test_a_word_has_one_meaning_in_a_section():
    content = yaml.safe_load(Path(vocabulary.__file__).with_suffix(".yaml").read_text("utf-8"))
    for section, meanings in content.items():
        words = [word for group in meanings.values() for word in group]
        twice = {word for word in words if words.count(word) > 1}
        assert section == "at_default" or not twice, section


@pytest.mark.parametrize(
    "line", ["torchrun", "accelerate launch --num_processes 2", "A=1 python -u"]
)
def test_a_line_without_a_script_is_refused(line):
    with pytest.raises(UserError) as caught:
        import_command(line.split())
    assert caught.value.findings[0].slug == "import-kind"


def test_a_program_that_starts_itself_is_not_launched():
    assert import_command(["yolo", "train", "model=a.pt", "epochs=3"]).script == []
