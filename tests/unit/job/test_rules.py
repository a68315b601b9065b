"""Rules between keys: what the table of wrong jobs does not reach, and what must stay allowed."""

from __future__ import annotations

import os

import pytest

from phalanx.job import Override, check_job, gpu_findings, load_job, ranks_asked
from tests.unit.job.wrong_jobs import KNOWN_RECIPES

GOOD = {"recipe": "digits", "epochs": 10, "global_batch_size": 64}


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def check(*overrides, **keys):
    loaded = load_job({**GOOD, **keys}, overrides)
    return check_job(loaded, known_recipes=KNOWN_RECIPES)


def slugs(*overrides, **keys):
    return [f.slug for f in check(*overrides, **keys)]


@pytest.mark.parametrize(
    "keys",
    [
        {"precision": "fp64", "devices": {"gpus": 2}},
        {"schedule": {"warmup": "10 epochs"}},
        {"schedule": {"warmup": "0 steps"}},
        {"schedule": {"warmup": "99999 steps"}},  # epochs are not steps until the data is known
        {"evaluate": {"every": "0.5 epochs"}},
        {"checkpoint": {"every": "2.5 minutes"}},
        {"stop_after": "50%"},
        {"micro_batch_size": 64},
        {"micro_batch_size": 7},
        {"gradient_accumulation": 3},
        {"micro_batch_size": 8, "gradient_accumulation": 4, "devices": {"cpu": 2}},
        {"micro_batch_size": 8, "gradient_accumulation": 4},
        {"strategy": "single", "devices": {"cpu": 1}},
        {"strategy": "single", "devices": {"gpus": [3]}},
        {"optimizer": {"name": "sgd", "nesterov": True}},
        {"output": "new/deep/folder"},
    ],
    ids=str,
)
def test_right_jobs_have_no_findings(keys):
    assert check(**keys) == []


def test_a_typed_length_against_the_files_names_the_other_key():
    (finding,) = check(Override("steps", 5, "--steps"))
    assert finding.slug == "two-lengths"
    assert finding.fix == "add epochs=null to the command line"
    assert "steps = 5 (--steps)" in finding.why
    assert slugs(Override("steps", 5, "--steps"), "epochs=null") == []


def test_ignored_settings_are_warnings():
    (momentum,) = check(optimizer={"momentum": 0.8})
    assert (momentum.slug, momentum.severity) == ("ignored-key", "warning")
    assert "0.8" in momentum.what
    assert slugs(optimizer={"name": "sgd", "betas": [0.9, 0.99]}) == ["ignored-key"]
    assert slugs(optimizer={"nesterov": True}) == ["ignored-key"]


def test_settings_of_an_average_that_is_off_are_ignored_with_a_warning():
    (warmup,) = check(ema={"warmup": True})
    assert (warmup.slug, warmup.severity) == ("ignored-key", "warning")
    assert "ema.decay: 0.999" in warmup.fix
    assert slugs(ema={"evaluate": False, "warmup": True}) == ["ignored-key"] * 2
    assert slugs(ema={"decay": 0.99, "warmup": True, "evaluate": False}) == []


@pytest.mark.parametrize(
    ("keys", "fix"),
    [
        ({"micro_batch_size": 8, "gradient_accumulation": 3}, "global_batch_size: 72"),
        ({"gradient_accumulation": 65}, "global_batch_size: 65"),
        ({"gradient_accumulation": 33, "devices": {"gpus": [0, 1]}}, "global_batch_size: 66"),
    ],
)
def test_batch_arithmetic_proposes_a_batch_that_works(keys, fix):
    (finding,) = check(**keys)
    assert (finding.slug, finding.fix) == ("batch-arithmetic", fix)
    assert check(**keys, global_batch_size=int(fix.split()[1])) == []


def test_micro_batch_alone_proposes_batch_per_gpu():
    (finding,) = check(global_batch_size=None, micro_batch_size=8)
    assert (finding.slug, finding.fix) == ("no-batch", "batch_per_gpu=8")


def test_unwritable_folder_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
    (finding,) = check(output="a/b")
    assert finding.slug == "output-path"
    assert str(tmp_path) in finding.what
    assert not (tmp_path / "a").exists()


def test_recipe_beside_the_job_file_is_proposed(tmp_path):
    folder = tmp_path / "configs"
    folder.mkdir()
    (folder / "mine.py").write_text("class Mine: ...\n")
    (folder / "job.yaml").write_text("recipe: mine.py:Mine\nepochs: 1\nglobal_batch_size: 8\n")
    (finding,) = check_job(load_job("configs/job.yaml"), known_recipes=())
    assert (finding.slug, finding.fix) == ("recipe-missing", "recipe: configs/mine.py:Mine")
    (folder / "job.yaml").write_text(f"{finding.fix}\nepochs: 1\nglobal_batch_size: 8\n")
    assert check_job(load_job("configs/job.yaml"), known_recipes=()) == []


@pytest.mark.parametrize("recipe", ["a/b", ":", "x:", ":A", "./", "\0.py:A", "a.py:1b", "~/a.py:A"])
def test_odd_recipes_are_findings_not_exceptions(recipe):
    assert slugs(recipe=recipe)[0].split("-")[0] in ("recipe", "unknown")


def test_weights_are_found_as_a_path_or_as_a_run(tmp_path):
    (tmp_path / "best.pt").write_bytes(b"")
    (tmp_path / "runs" / "first").mkdir(parents=True)
    assert slugs(init_from="best.pt") == slugs(init_from="first") == []
    (finding,) = check(init_from="bset.pt")
    assert finding.fix == "init_from: best.pt"
    assert slugs(init_from="a\0b") == ["init-from"]


@pytest.mark.parametrize(
    ("devices", "ranks"),
    [({}, None), ({"gpus": "all"}, None), ({"gpus": 4}, 4), ({"gpus": [1, 5]}, 2), ({"cpu": 3}, 3)],
)
def test_ranks_asked(devices, ranks):
    assert ranks_asked(load_job({**GOOD, "devices": devices}).job) == ranks


def gpus(value, present, source="--gpus"):
    loaded = load_job(GOOD, [Override("devices.gpus", value, source)])
    return gpu_findings(loaded, present, cuda_visible_devices="0,1")


def test_gpus_that_are_there_have_no_findings():
    assert gpus(None, []) == gpus("all", [0]) == gpus(2, [0, 1]) == gpus([1], [0, 1]) == []


@pytest.mark.parametrize("value", ["all", 2, [0]])
def test_gpus_on_a_machine_without(value):
    (finding,) = gpus(value, [])
    assert (finding.slug, finding.fix) == ("no-gpu", "--cpu 2")
    assert "(--gpus)" in finding.why
    assert 'CUDA_VISIBLE_DEVICES is "0,1"' in finding.why


def test_missing_gpu_fix_is_an_option_that_can_be_pasted():
    (finding,) = gpus([0, 9], [0, 1])
    assert (finding.slug, finding.fix) == ("no-such-gpu", "--gpus 0,")
    (finding,) = gpus(3, [0, 1], "gpus=3")
    assert (finding.slug, finding.fix) == ("too-few-gpus", "devices.gpus=2")
