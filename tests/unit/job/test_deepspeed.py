"""DeepSpeed's file becomes keys of the job, or Findings that name both places."""

import importlib.machinery
import json
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phalanx.errors import UserError
from phalanx.job import Interval, Override, check_job, load_job
from phalanx.recipe.loading import builtin_recipes

# As the team of guide G3 has it.
G3 = """{"train_batch_size": "auto",
"train_micro_batch_size_per_gpu": "auto",
"gradient_accumulation_steps": "auto",
"gradient_clipping": 1.0,
"zero_optimization": {"stage": 2,
  "offload_optimizer": {"device": "cpu", "pin_memory": true},
  "allgather_partitions": true, "allgather_bucket_size": 2e8, "reduce_scatter": true,
  "reduce_bucket_size": 2e8, "overlap_comm": true, "contiguous_gradients": true},
"fp16": {"enabled": false}, "bf16": {"enabled": true},
"optimizer": {"type": "AdamW",
  "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
"scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": "auto",
  "warmup_max_lr": "auto", "warmup_num_steps": "auto"}}}
"""
GOOD = {"recipe": "digits", "epochs": 10, "global_batch_size": 64}
ADAMW = {"type": "AdamW", "params": {"weight_decay": 0.1}}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def load(content, *overrides, **job):
    """A job with a DeepSpeed file of this content, which leaves clipping to the job."""
    if isinstance(content, dict):
        content = {**content, "gradient_clipping": content.get("gradient_clipping", "auto")}
    Path("ds.json").write_text(
        content if isinstance(content, str) else json.dumps(content, indent=1)
    )
    option = [
        Override("strategy", "deepspeed", "--deepspeed"),
        Override("deepspeed.config", "ds.json", "--deepspeed"),
    ]
    return load_job({**GOOD, **job}, [*option, *overrides])


def problems(content, *overrides, **job):
    """The errors that a file gives."""
    try:
        loaded = load(content, *overrides, **job)
    except UserError as error:
        return error.findings
    return [f for f in check_job(loaded, known_recipes=["digits"]) if f.severity == "error"]


def notes(content, **job):
    findings = check_job(load(content, **job), known_recipes=["digits"])
    assert all(f.severity != "error" for f in findings)
    return [(f.slug, f.severity) for f in findings]


def test_the_file_of_the_guide_is_read_as_it_is():
    loaded = load(G3)
    job = loaded.job
    assert job.strategy == "deepspeed"
    assert (job.deepspeed.stage, job.deepspeed.offload_optimizer) == (2, True)
    assert job.deepspeed.offload_parameters is False
    assert job.precision == "bf16"
    assert (job.optimizer.name, job.optimizer.clip_norm) == ("adamw", 1.0)
    assert (job.schedule.name, job.schedule.warmup) == ("constant", "auto")
    assert job.optimizer.lr == 1e-3, "auto leaves the rate to the job"
    assert job.deepspeed.config == {
        "zero_optimization": {
            "offload_optimizer": {"pin_memory": True},
            "allgather_partitions": True,
            "allgather_bucket_size": 200_000_000,
            "reduce_scatter": True,
            "reduce_bucket_size": 200_000_000,
            "overlap_comm": True,
            "contiguous_gradients": True,
        }
    }
    assert str(loaded.origin("optimizer.clip_norm")) == "ds.json:4"
    assert str(loaded.origin("precision")) == "ds.json:9"
    assert str(loaded.origin("deepspeed.offload_optimizer")) == "ds.json:6"
    assert notes(G3) == [("deepspeed-warmup", "note")]


def test_a_run_keeps_the_content_and_not_the_file():
    job = load(G3, "optimizer.lr=0.01").job
    saved = job.model_dump(mode="json", exclude_unset=True)
    Path("ds.json").unlink()
    again = load_job(saved)
    assert again.job == job
    assert again.findings == ()
    # What the file said once is the job's own now: a resumed run may change it.
    changed = load_job(saved, ["optimizer.clip_norm=2", "deepspeed.stage=3"]).job
    assert (changed.optimizer.clip_norm, changed.deepspeed.stage) == (2, 3)


SAID = {
    "batch": ({"train_batch_size": 128}, "global_batch_size", 128),
    "micro-batch": ({"train_micro_batch_size_per_gpu": 8}, "micro_batch_size", 8),
    "accumulation": ({"gradient_accumulation_steps": 4}, "gradient_accumulation", 4),
    "clipping": ({"gradient_clipping": 0.5}, "optimizer.clip_norm", 0.5),
    "no clipping": ({"gradient_clipping": 0.0}, "optimizer.clip_norm", None),
    "fp16": ({"fp16": {"enabled": True}}, "precision", "fp16"),
    "bf16": ({"bf16": {"enabled": True}, "fp16": {"enabled": False}}, "precision", "bf16"),
    "old bf16": ({"bfloat16": {"enabled": True}}, "precision", "bf16"),
    "fp32": ({"bf16": {"enabled": False}, "fp16": {"enabled": False}}, "precision", "fp32"),
    "no precision": ({"bf16": {"enabled": "auto"}}, "precision", "auto"),
    "adam": ({"optimizer": {**ADAMW, "type": "Adam"}}, "optimizer.name", "adamw"),
    "sgd": (
        {"optimizer": {"type": "SGD", "params": {"momentum": 0.5, "weight_decay": 0}}},
        "optimizer.momentum",
        0.5,
    ),
    "lr": (
        {"optimizer": {"type": "AdamW", "params": {"lr": 3e-5, "weight_decay": 0}}},
        "optimizer.lr",
        3e-5,
    ),
    "betas": (
        {"optimizer": {"type": "AdamW", "params": {"betas": [0.8, 0.9], "weight_decay": 0}}},
        "optimizer.betas",
        [0.8, 0.9],
    ),
    "decay": ({"optimizer": ADAMW}, "optimizer.weight_decay", 0.1),
    "linear": ({"scheduler": {"type": "WarmupDecayLR"}}, "schedule.name", "linear"),
    "warm-up": (
        {"scheduler": {"type": "WarmupCosineLR", "params": {"warmup_num_steps": 50}}},
        "schedule.warmup",
        Interval(count=50, unit="steps"),
    ),
    "peak": (
        {"scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 2e-4}}},
        "optimizer.lr",
        2e-4,
    ),
    "floor": (
        {"scheduler": {"type": "WarmupCosineLR", "params": {"cos_min_ratio": 0.1}}},
        "schedule.min_lr_ratio",
        0.1,
    ),
    "stage": ({"zero_optimization": {"stage": 3}}, "deepspeed.stage", 3),
    "offload": (
        {"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}},
        "deepspeed.offload_parameters",
        True,
    ),
    "old offload": (
        {"zero_optimization": {"cpu_offload": True}},
        "deepspeed.offload_optimizer",
        True,
    ),
}


@pytest.mark.parametrize("name", SAID)
def test_a_value_of_the_file_becomes_the_jobs(name):
    content, key, value = SAID[name]
    job = {"global_batch_size": None} if name == "batch" else {}
    loaded = load(content, **job)
    assert loaded.value(key) == value
    kind = "default" if name == "no precision" else "deepspeed"
    assert loaded.origin(key).kind == kind
    assert problems(content, **job) == []


def test_without_a_global_batch_the_micro_batch_is_multiplied_up():
    content = {"train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 4}
    job = load(content, global_batch_size=None).job
    assert (job.batch_per_gpu, job.gradient_accumulation) == (8, 4)
    assert (job.global_batch_size, job.micro_batch_size) == (None, None)


CONTRADICTIONS = {
    "global_batch_size": ({"train_batch_size": 32}, 64),
    "micro_batch_size": ({"train_micro_batch_size_per_gpu": 8}, 4),
    "gradient_accumulation": ({"gradient_accumulation_steps": 2}, 8),
    "optimizer.lr": ({"optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}, 0.01),
    "optimizer.clip_norm": ({"gradient_clipping": 1.0}, None),
    "precision": ({"fp16": {"enabled": True}}, "bf16"),
    "schedule.warmup": (
        {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5}}},
        "2 epochs",
    ),
    "deepspeed.stage": ({"zero_optimization": {"stage": 3}}, 2),
}


@pytest.mark.parametrize("key", CONTRADICTIONS)
def test_a_contradiction_names_both_values_and_both_places(key):
    content, stated = CONTRADICTIONS[key]
    (finding,) = problems(content, Override(key, stated, f"{key}={stated}"))
    assert finding.slug == "deepspeed-contradiction"
    assert f"{key}={stated} on the command line" in finding.why
    assert "ds.json:" in finding.why
    assert json.dumps(stated) in finding.what
    assert '"auto" in ds.json:' in finding.fix


def test_the_file_goes_before_what_a_builtin_recipe_says_of_itself():
    Path("ds.json").write_text(G3)
    option = Override("deepspeed.config", "ds.json", "--deepspeed")
    path = builtin_recipes()["digits"] / "job.yaml"
    loaded = load_job(path, [option])
    assert loaded.job.schedule.name == "constant"
    (note,) = [f for f in loaded.findings if f.slug == "deepspeed-instead"]
    assert '"constant"' in note.what
    assert f'"cosine" ({path}' in note.why
    own = Path("job.yaml")
    own.write_text(path.read_text())
    with pytest.raises(UserError) as caught:  # the same words in a file of the user's own
        load_job(own, [option])
    assert [f.slug for f in caught.value.findings] == ["deepspeed-contradiction"]


def test_the_same_value_twice_is_no_contradiction():
    content = {"train_batch_size": 64, "gradient_clipping": 1, "fp16": {"enabled": True}}
    job = load(content, precision="fp16", optimizer={"clip_norm": 1.0}).job
    assert (job.precision, job.optimizer.clip_norm) == ("fp16", 1.0)


def test_two_ways_to_state_the_batch_are_one_finding():
    (finding,) = problems({"train_batch_size": 64}, global_batch_size=None, batch_per_gpu=16)
    assert finding.slug == "two-batches"
    assert "ds.json:2" in finding.why


def test_the_arithmetic_of_the_file_is_judged():
    content = {
        "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": 2,
    }
    assert problems(content, devices={"cpu": 4}) == []
    (finding,) = problems(content, devices={"cpu": 2})
    assert finding.slug == "batch-arithmetic"
    assert "8 per forward x 2 micro-batches x 2 ranks = 32" in finding.what


WRONG = {
    "misspelt key": ({"gradient_cliping": 1.0}, "deepspeed-key", "`gradient_clipping`"),
    "misspelt zero key": (
        {"zero_optimization": {"overlap_com": True}},
        "deepspeed-key",
        "`overlap_comm`",
    ),
    "unknown optimizer parameter": (
        {"optimizer": {"type": "AdamW", "params": {"leaning_rate": 1}}},
        "deepspeed-key",
        "optimizer.params.leaning_rate = 1 (ds.json:",
    ),
    "another optimizer": (
        {"optimizer": {"type": "OneBitAdam", "params": {"lr": 1e-3}}},
        "deepspeed-refused",
        '"OneBitAdam"',
    ),
    "Adam with L2": (
        {"optimizer": {"type": "Adam", "params": {"adam_w_mode": False, "weight_decay": 0.1}}},
        "deepspeed-refused",
        "adam_w_mode",
    ),
    "another scheduler": ({"scheduler": {"type": "OneCycle"}}, "deepspeed-refused", "WarmupLR"),
    "amp": ({"amp": {"enabled": True, "opt_level": "O1"}}, "deepspeed-refused", "apex"),
    "pipeline": ({"pipeline": {"stages": 2}}, "deepspeed-refused", "out of scope"),
    "hybrid engine": ({"hybrid_engine": {"enabled": True}}, "deepspeed-refused", "ds.json:2"),
    "curriculum": ({"curriculum_learning": {"enabled": True}}, "deepspeed-refused", "order"),
    "NVMe": (
        {"zero_optimization": {"offload_optimizer": {"device": "nvme", "nvme_path": "/x"}}},
        "deepspeed-value",
        "host memory",
    ),
    "partial offload": (
        {"zero_optimization": {"offload_optimizer": {"device": "cpu", "ratio": 0.3}}},
        "deepspeed-refused",
        "ratio",
    ),
    "stage 0": ({"zero_optimization": {"stage": 0}}, "deepspeed-refused", "strategy: ddp"),
    "stage 4": ({"zero_optimization": {"stage": 4}}, "wrong-value", "`deepspeed.stage` is 4"),
    "quantized": (
        {"zero_optimization": {"zero_quantized_weights": True}},
        "deepspeed-refused",
        "rounds",
    ),
    "two precisions": (
        {"fp16": {"enabled": True}, "bf16": {"enabled": True}},
        "deepspeed-value",
        "fp16.enabled = true (ds.json:",
    ),
    "two rates": (
        {
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
            "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 2e-3}},
        },
        "deepspeed-value",
        "0.001 and 0.002",
    ),
    "text for a flag": ({"bf16": {"enabled": "yes"}}, "deepspeed-value", "`true` or `false`"),
    "text for a size": (
        {"zero_optimization": {"reduce_bucket_size": "large"}},
        "deepspeed-value",
        '"large"',
    ),
    "half a size": (
        {"zero_optimization": {"reduce_bucket_size": 0.5}},
        "deepspeed-value",
        "whole number",
    ),
    "number for a section": ({"zero_optimization": 3}, "deepspeed-value", "in braces"),
    "number for the optimizer": ({"optimizer": 3}, "deepspeed-value", "in braces"),
    "text for the rate": (
        {"optimizer": {"type": "AdamW", "params": {"lr": "fast"}}},
        "wrong-value",
        "ds.json:",
    ),
    "float batch": ({"train_batch_size": 1.5}, "wrong-value", "`global_batch_size` is 1.5"),
    "offload at stage 2": (
        {"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}},
        "deepspeed-offload",
        "ds.json:",
    ),
    "fp16 masters": (
        {"fp16": {"enabled": True, "fp16_master_weights_and_grads": True}},
        "deepspeed-refused",
        "fp32",
    ),
    "no JSON": ('{"a": 1,}', "deepspeed-json", "ds.json:1:"),
    "empty": ("", "deepspeed-json", "ds.json:1:1"),
    "a list": ("[1, 2]", "deepspeed-json", "braces"),
    "a key twice": ('{"fp16": {}, "fp16": {}}', "deepspeed-json", '"fp16" is given twice'),
    "no number": ('{"gradient_clipping": NaN}', "deepspeed-json", "NaN"),
    "too deep": ('{"a":' * 5000 + "1" + "}" * 5000, "deepspeed-json", "ds.json"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_followed_is_a_finding(name):
    content, slug, says = WRONG[name]
    job = {"global_batch_size": None} if name == "float batch" else {}
    (finding,) = problems(content, **job)
    assert finding.slug == slug
    assert says in f"{finding.what} {finding.why} {finding.fix}"


def test_all_problems_of_a_file_come_at_once():
    content = {
        "gradient_cliping": 1,
        "zero_optimization": {"stage": 0, "overlap_comm": 1},
        "optimizer": {"type": "Lion"},
        "train_batch_size": 5,
    }
    slugs = [f.slug for f in problems(content)]
    assert sorted(slugs) == [
        *("deepspeed-contradiction", "deepspeed-key", "deepspeed-refused"),
        *("deepspeed-refused", "deepspeed-value"),
    ]


def test_what_is_off_or_auto_is_no_problem():
    content = {
        "amp": {"enabled": False},
        "hybrid_engine": {"enabled": False},
        "tensorboard": {"enabled": False},
        "prescale_gradients": False,
        "zero_allow_untested_optimizer": False,
        "zero_optimization": {
            "stage": 3,
            "reduce_bucket_size": "auto",
            "stage3_prefetch_bucket_size": "auto",
            "stage3_gather_16bit_weights_on_model_save": True,
            "zero_quantized_weights": False,
        },
        "fp16": {"enabled": "auto", "loss_scale": 0, "initial_scale_power": 12, "hysteresis": 2},
    }
    assert notes(content) == []
    assert load(content).job.deepspeed.config == {
        "zero_optimization": {"stage3_gather_16bit_weights_on_model_save": True},
        "fp16": {"loss_scale": 0, "initial_scale_power": 12, "hysteresis": 2},
    }


def test_what_changes_nothing_is_a_warning():
    content = {
        "wandb": {"enabled": True},
        "checkpoint": {"tag_validation": "Warn"},
        "zero_optimization": {"round_robin_gradients": True},
        "scheduler": {
            "type": "WarmupDecayLR",
            "params": {"warmup_num_steps": 5, "total_num_steps": 99, "warmup_type": "linear"},
        },
    }
    assert notes(content) == [("deepspeed-ignored", "warning")] * 4


def test_a_default_that_is_not_deepspeeds_is_said():
    content = {"optimizer": {"type": "SGD", "params": {"lr": 0.1}}}
    assert notes(content) == [("deepspeed-default", "note")] * 2
    assert notes(content, optimizer={"momentum": 0.5, "weight_decay": 0.0}) == []
    (finding,) = load('{"zero_optimization": {}}').findings
    assert "DeepSpeed alone would take 1.0" in finding.what
    assert finding.fix == "optimizer.clip_norm=1.0 for DeepSpeed's default"


def test_a_file_that_is_not_there_names_one_that_is():
    Path("ds_config.json").write_text("{}")
    with pytest.raises(UserError) as error:
        load_job({**GOOD, "deepspeed": {"config": "ds_confg.json"}})
    (finding,) = error.value.findings
    assert finding.slug == "deepspeed-file"
    assert "did you mean `ds_config.json`?" in finding.what
    for name in (".", "missing/ds.json", "a\0b"):
        with pytest.raises(UserError) as error:
            load_job({**GOOD, "deepspeed": {"config": name}})
        assert [f.slug for f in error.value.findings] == ["deepspeed-file"]


def test_a_file_beside_the_job_is_offered():
    Path("jobs").mkdir()
    Path("jobs/ds.json").write_text("{}")
    Path("jobs/job.yaml").write_text(
        "recipe: digits\nepochs: 1\nglobal_batch_size: 8\ndeepspeed: {config: ds.json}\n"
    )
    with pytest.raises(UserError) as error:
        load_job("jobs/job.yaml")
    (finding,) = error.value.findings
    assert finding.fix == "deepspeed.config: jobs/ds.json"


def test_a_file_in_the_job_means_the_strategy():
    Path("ds.json").write_text('{"zero_optimization": {"stage": 1}}')
    loaded = load_job({**GOOD, "deepspeed": {"config": "ds.json"}})
    assert (loaded.job.strategy, loaded.job.deepspeed.stage) == ("deepspeed", 1)
    inline = load_job({**GOOD, "deepspeed": {"config": {"zero_optimization": {"stage": 1}}}})
    assert inline.job == loaded.job
    other = load_job({**GOOD, "strategy": "ddp", "deepspeed": {"config": "ds.json"}})
    findings = check_job(other, known_recipes=["digits"])
    assert [f.slug for f in findings if f.severity == "error"] == ["deepspeed-strategy"]


RULES = {
    "deepspeed-exact": {"determinism": "exact"},
    "deepspeed-fp64": {"precision": "fp64"},
    "deepspeed-offload": {"deepspeed": {"offload_parameters": True}},
}


@pytest.mark.parametrize("slug", RULES)
def test_rules_of_the_strategy(slug):
    loaded = load_job({**GOOD, "strategy": "deepspeed", **RULES[slug]})
    assert [f.slug for f in check_job(loaded, known_recipes=["digits"])] == [slug]


def test_settings_without_the_strategy_are_a_warning():
    loaded = load_job({**GOOD, "deepspeed": {"stage": 3, "offload_optimizer": True}})
    findings = check_job(loaded, known_recipes=["digits"])
    assert [(f.slug, f.severity) for f in findings] == [("ignored-key", "warning")] * 2


def test_a_missing_package_names_its_extra(monkeypatch):
    class Nowhere:
        def find_spec(self, name, path=None, target=None):
            return None

    monkeypatch.setattr(sys, "meta_path", [Nowhere()])
    monkeypatch.delitem(sys.modules, "deepspeed", raising=False)
    assert importlib.machinery  # imported before the finders went
    loaded = load_job({**GOOD, "strategy": "deepspeed"})
    (finding,) = check_job(loaded, known_recipes=["digits"])
    assert finding.slug == "deepspeed-missing"
    assert finding.fix == 'pip install "phalanx[deepspeed]"'


NAMES = st.sampled_from(
    [
        *("zero_optimization", "optimizer", "scheduler", "params", "type", "fp16", "bf16", "lr"),
        *("enabled", "stage", "offload_optimizer", "device", "train_batch_size", "betas", "amp"),
        *("warmup_num_steps", "warmup_max_lr", "gradient_clipping", "steps_per_print", "x"),
    ]
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=3)
    | st.sampled_from(["auto", "AdamW", "SGD", "WarmupLR", "cpu", "none"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.dictionaries(NAMES, VALUES, max_size=6))
def test_any_json_is_read_or_refused_with_findings(content):
    try:
        loaded = load(content)
    except UserError as error:
        assert error.findings
    else:
        again = load_job(loaded.job.model_dump(mode="json", exclude_unset=True))
        assert again.job == loaded.job
