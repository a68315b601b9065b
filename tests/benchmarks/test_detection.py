"""benchmarks/detection: what is judged against what."""

import importlib.util
import json
import os
import sys
from types import SimpleNamespace

import pytest

from tests.fixtures.scripts import BENCHMARKS, beside

WORK = {"epochs": 40, "images": 160, "size": 96, "batch": 8}


def load(name):
    file = BENCHMARKS / "detection" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"detection_{name}", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def report():
    with beside("detection"):
        yield load("report")


def learned(contestant, values):
    return [
        {"contestant": contestant, "seed": seed, "work": WORK, "mAP50-95": value, "mAP50": value}
        for seed, value in enumerate(values)
    ]


@pytest.mark.parametrize(
    ("ours", "says"),
    [
        ([0.400, 0.401, 0.402, 0.401], "shown"),
        ([0.30, 0.50, 0.45, 0.36], "the interval is too wide to show it"),
        ([0.33, 0.34, 0.33, 0.34], "**not reached**"),
        ([0.40], "one seed has no interval"),
    ],
)
def test_learning_is_judged_with_its_interval(report, ours, says):
    records = learned("phalanx-1", ours) + learned("ultralytics", [0.400, 0.402, 0.401, 0.399])
    text = "\n".join(report.learning_table(records))
    assert says in text
    assert "Phalanx, 1 rank" in text


def speed(contestant, batch, rate):
    figures = {"samples_per_s": rate, "slowest": rate, "quickest": rate, "memory_bytes": 2**30}
    return {"contestant": contestant, "batch": batch, **figures}


@pytest.mark.parametrize(("rate", "says"), [(1300, "1.30, asked at least 1.3: reached"),
                                            (1200, "**not reached**")])  # fmt: skip
def test_speed_is_judged_at_a_batch_of_64(report, rate, says):
    records = [
        speed("phalanx", 64, rate), speed("ultralytics", 64, 1000), speed("phalanx", 256, 10),
        speed("ultralytics", 256, 20), {"contestant": "compute", "batch": 64, "error": "no GPU"},
    ]  # fmt: skip
    text = "\n".join(report.speed_tables(records))
    assert says in text
    assert text.count("asked") == 1
    assert "failed: compute alone: Ultralytics' model and loss, eager: `no GPU`" in text


def test_the_rate_of_the_preset_stands_beside_the_best(report):
    figures = [(64, 0.002, 0.42), (64, 0.004, 0.44), (64, 0.04, 0.0), (256, 0.004, 0.4)]
    records = [
        {"contestant": "", "batch": batch, "rate": rate, "seed": seed, "work": WORK,
         "mAP50-95": value, "mAP50": value}
        for batch, rate, value in figures for seed in (0, 1)
    ]  # fmt: skip
    text = "\n".join(report.rates_table(records))
    assert "best at a batch of 64: 0.004, mAP50-95 0.440; the preset's 0.002: 0.420" in text
    assert "best at a batch of 256: 0.004, mAP50-95 0.400; the preset's 0.004: 0.400" in text
    assert "| 0.04 | 2 | 0.000 +- 0.000 |" in text


def test_the_preset_is_what_the_rates_are_measured_for(report):
    import yaml

    from phalanx.recipe.loading import builtin_recipes

    file = builtin_recipes()["detection"] / "presets" / "large_batch.yaml"
    optimizer = yaml.safe_load(file.read_text())["optimizer"]
    assert (optimizer["lr"], optimizer["lr_batch"]) == (report.PRESET_RATE, report.PRESET_BATCH)
    assert optimizer["lr_rule"] == "sqrt"


@pytest.fixture(scope="module")
def at_once():
    with beside("detection"):
        yield load("at_once")


def test_what_was_trained_is_not_trained_again(at_once, tmp_path):
    out, about = tmp_path / "a.jsonl", {"machine": "CPU only"}

    def training(name, **facts):
        argv = [sys.executable, "-c", f"open({str(tmp_path / name)!r}, 'a').write('x')"]
        log = tmp_path / f"{name}.log"
        return at_once.Training(name, 0, 1, argv, lambda: {"mAP50-95": 0.5}, log, facts=facts)

    trainings = [training("one", work={"epochs": 2}), training("other", work={"epochs": 2})]
    at_once.train_all(trainings[:1], out=out, about=about, budget_s=60)
    at_once.train_all(trainings, out=out, about=about, budget_s=60)
    at_once.train_all([training("one", work={"epochs": 3})], out=out, about=about, budget_s=60)
    assert (tmp_path / "one").read_text() == "xx"  # as often as its work differs
    assert (tmp_path / "other").read_text() == "x"
    first, *_ = map(json.loads, out.read_text().splitlines())
    assert (first["contestant"], first["seed"], first["work"]) == ("one", 0, {"epochs": 2})
    assert first["about"] == about


def test_batches_and_contestants_are_chosen_by_name():
    given = {"limit_s": 9.0, "seconds": 3.0, "settle_s": 2.0, "workers": 4, "size": 640}
    with beside("detection"):
        run_gpu = load("run_gpu")
        turns = run_gpu.plan_turns(
            "data.yaml", SimpleNamespace(only=["256"], skip=["compute"], tiny=False, **given)
        )
    assert [turn.contestant for turn in turns] == ["phalanx", "ultralytics", "ultralytics-free"]
    assert {turn.facts["batch"] for turn in turns} == {256}
    assert json.loads(turns[1].argv[-1])["batch"] == 256
    assert turns[0].argv[turns[0].argv.index("--batch") + 1] == "256"


def test_a_budget_ends_what_runs_and_says_what_is_missing(at_once, tmp_path):
    def training(name, code):
        log = tmp_path / f"{name}.log"
        return at_once.Training(name, 0, 1, [sys.executable, "-c", code], lambda: {"x": 1}, log)

    heard = {}
    left = at_once.run_at_once(
        [
            training("good", "pass"),
            training("bad", "raise SystemExit('no such thing')"),
            training("endless", "import time; time.sleep(600)"),
            training("late", "pass"),
        ],
        on_done=lambda one, record: heard.update({one.name: record}),
        budget_s=4,
        cores=sorted(os.sched_getaffinity(0))[:1],
    )
    assert left == ["endless 0", "late 0"]
    assert heard["good"]["x"] == 1
    assert "ended with 1" in heard["bad"]["error"] and "no such thing" in heard["bad"]["error"]


def test_the_losses_of_some_epochs_stand_side_by_side(report):
    records = [
        {"contestant": name, "seed": seed, "work": WORK, "mAP50-95": 0.4, "mAP50": 0.6,
         "losses": [[start + seed, 1.0, 1.0]] * 8}
        for name, start in (("phalanx-1", 1.0), ("ultralytics", 3.0)) for seed in (0, 1)
    ]  # fmt: skip
    text = "\n".join(report.learning_table(records))
    assert "| mAP50-95 of seed | 0 | 1 |" in text
    assert "| 8 | 1.500, 1.000, 1.000 | 3.500, 1.000, 1.000 |" in text
