"""benchmarks/detection: what is judged against what."""

import importlib.util

import pytest

from tests.fixtures.scripts import BENCHMARKS

WORK = {"epochs": 40, "images": 160, "size": 96, "batch": 8}


@pytest.fixture(scope="module")
def report():
    file = BENCHMARKS / "detection" / "report.py"
    spec = importlib.util.spec_from_file_location("detection_report", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    assert "compute alone" in text and "failed: no GPU" in text
