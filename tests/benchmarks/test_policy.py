"""benchmarks/policy: what is judged against what, and what is run."""

import importlib.util
import json
from types import SimpleNamespace

import pytest

from tests.fixtures.scripts import BENCHMARKS, beside

ABOUT = {
    "date": "2026-11-15 10:00 UTC", "machine": "NVIDIA H200", "cores": 16, "python": "3.12",
    "torch": "2.11", "commit": "abc", "command": "python run_gpu.py",
}  # fmt: skip


@pytest.fixture
def script():
    def load(name):
        spec = importlib.util.spec_from_file_location(
            f"policy_{name}", BENCHMARKS / "policy" / f"{name}.py"
        )
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    with beside("policy"):
        yield load


def _record(work, contestant, rate=None, **more):
    figures = {"samples_per_s": rate, "slowest": rate, "quickest": rate} if rate else {}
    return {"work": work, "contestant": contestant, "batch": 64, "about": ABOUT, **figures, **more}


def test_each_size_is_judged_by_what_was_asked_of_it(script):
    records = [
        _record("6m", "phalanx", 700.0, memory_bytes=2**30),
        _record("6m", "accelerate", 100.0),
        _record("6m", "accelerate-compiled", 350.0),
        _record("170m", "phalanx", 100.0),
        _record("170m", "accelerate", 100.0),
        _record("170m", "accelerate-compiled", left_out=True),
    ]
    small, large = "\n".join(script("report").make_report(records)).split("## ")[1:]
    assert "| **Phalanx**, no flags | 700 | 700 to 700 | 1.00 GiB |" in small
    assert "times Accelerate: 7.00, asked at least 8: **not reached**" in small
    assert "times Accelerate, its switch for torch.compile: 2.00\n" in small  # nothing was asked
    assert "times Accelerate: 1.00, asked at least 1: reached" in large
    assert "not measured, for want of time: Accelerate, its switch" in large


def test_contestants_differ_in_nothing_but_their_flags(script):
    given = {"only": ["170m"], "skip": [], "limit_s": 9.0, "seconds": 3.0, "settle_s": 2.0}
    arguments = SimpleNamespace(**given, workers=4, tiny=False)
    turns = {t.contestant: t for t in script("run_gpu").plan_turns("DATA", arguments)}
    ours, eager = turns["phalanx"].argv, turns["phalanx-eager"].argv
    assert [word for word in eager if word not in ours] == ["--fast", "off"]
    assert "size=170m" in ours and ours[ours.index("--batch-size") + 1] == "256"
    stock, compiled = (
        json.loads(turns[name].argv[-1]) for name in ("accelerate", "accelerate-compiled")
    )
    assert (stock.pop("compile"), compiled.pop("compile")) == (False, True)
    assert stock == compiled
    assert stock["batch"] == turns["accelerate"].facts["batch"] == 256
    assert (turns["accelerate"].limit_s, turns["phalanx"].limit_s) == (9.0, None)
