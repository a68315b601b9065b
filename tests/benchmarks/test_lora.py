"""benchmarks/lora: what is judged against what; rows fill their length."""

import importlib.util
import json

import numpy as np
import pytest

from tests.fixtures.scripts import BENCHMARKS, beside

ABOUT = {
    "date": "2026-11-15 10:00 UTC", "machine": "NVIDIA H200", "cores": 16, "python": "3.12",
    "torch": "2.11", "commit": "abc", "command": "python speed.py",
}  # fmt: skip
GIB = 2**30


@pytest.fixture(autouse=True)
def _beside():
    with beside("lora"):
        yield


def _line(work, contestant, rate=None, **more):
    figures = {"samples_per_s": rate, "slowest": rate, "quickest": rate} if rate else {}
    return json.dumps({"work": work, "contestant": contestant, "about": ABOUT, **figures, **more})


def _report():
    # Under a name of its own: the peers' report, which it takes parts from, has the same one.
    spec = importlib.util.spec_from_file_location("lora_report", BENCHMARKS / "lora" / "report.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_report_judges_each_figure_that_is_asked_for(tmp_path):
    plan = {"activation_checkpointing": "False: auto"}
    ours = {"memory_bytes": 10 * GIB, "plan": plan}
    lines = [
        _line("135m", "phalanx", 100.0, predicted_bytes=int(9.4 * GIB), **ours),
        _line("135m", "hf-trainer", 30.0, memory_bytes=20 * GIB),
        _line("135m", "hf-trainer-compiled", error="over 100 s: Traceback\nwarning"),
        _line("1b", "phalanx", 100.0, predicted_bytes=int(9.6 * GIB), **ours),
        _line("1b", "hf-trainer", 70.0, memory_bytes=9 * GIB),
        _line("1b", "hf-trainer-checkpointed", 50.0, memory_bytes=5 * GIB),
        _line("1b", "hf-trainer-compiled", 101.0),
    ]
    file = tmp_path / "lora.jsonl"
    file.write_text("\n".join(lines))
    report = _report()
    small, large = "\n".join(report.make_report(report.read_records([file]))).split("## ")[1:]
    assert "times HF Trainer + peft: 3.33, asked at least 3: reached" in small
    assert "equal checkpointing: 0.50 of it, asked at most 1: reached" in small
    assert "9.40 GiB, -6.0 % of the peak, asked within 5 %: **not reached**" in small
    assert "did not get to measure, ended after 100 s: HF Trainer + peft, torch_compile" in small
    assert "gradient checkpointing: 2.00, asked at least 1.6: reached" in large
    assert "times HF Trainer + peft: 1.43, asked at least 1.6: **not reached**" in large
    assert "torch_compile=True: 0.99, asked above 1: **not reached**" in large
    assert "equal checkpointing: 1.11 of it, asked at most 1: **not reached**" in large
    assert "-4.0 % of the peak, asked within 5 %: reached" in large


def test_every_row_has_exactly_as_many_tokens_as_are_counted(tmp_path):
    from models import SIZES, write_model, write_rows

    from phalanx.recipes.lora.options import LoraOptions
    from phalanx.recipes.lora.recipe import LoraRecipe

    size = SIZES["tiny"]
    model, data = tmp_path / "model", tmp_path / "rows.jsonl"
    write_model(model, size)
    write_rows(data, size)
    options = LoraOptions(
        model=str(model), weights="random", data=str(data), max_length=size.length
    )
    recipe = LoraRecipe(options)
    assert recipe.check() == []
    train = recipe.data("train")
    batch = train.__getitems__(np.arange(len(train)))
    assert batch["input_ids"].shape == (231, size.length)
    assert recipe.weight(batch) == 231 * (size.length - 1)
