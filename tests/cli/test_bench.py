"""`phalanx bench`: the machine alone, a job on one rank and on two, and what `plan` makes of it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from phalanx.codec import to_json
from phalanx.machine.host import cpu_model
from phalanx.prepare.calibrations import read_calibration
from tests.cli.command import fixture_machine, run_cli

HUNGRY = f"{Path(__file__).parents[1] / 'fixtures' / 'recipes' / 'hungry.py'}:Hungry"


@pytest.fixture(autouse=True)
def _own_place(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.chdir(tmp_path)
    machine = fixture_machine("cpu")
    two_cores = replace(machine, cpu=replace(machine.cpu, usable_cores=2))
    monkeypatch.setattr("phalanx.prepare.plan.probe_machine", lambda *a, **k: two_cores)


def kept():
    return read_calibration(cpu_model())[0]


@pytest.mark.ranks
def test_two_ranks_are_measured_until_one_runs_out_of_memory(tmp_path):
    code, out, err = run_cli(
        *("bench", HUNGRY, "--cpu", "2", "--precision", "fp64", "--steps", "9", "--json"),
        *("--batch-size", "8", "--micro", "2,4,8,16", "hunger=settle@0>4", "hungry_rank=1"),
    )
    assert code == 0, err
    record = json.loads(out)
    two, four, too_large = record["job"]["measured"]
    for measured in (two, four):
        step = measured["step"]
        parts = [step[f"{p}_s"] for p in ("data", "compute", "communication", "overhead")]
        assert sum(parts) == pytest.approx(step["step_s"]) and min(parts) >= 0
        assert (step["ranks"], step["strategy"]) == (2, "ddp")
        assert measured["samples_per_s"] == pytest.approx(
            2 * measured["micro_batch"] / step["step_s"]
        )
    assert (too_large["micro_batch"], too_large["step"]) == (8, None)
    assert too_large["missing"] == "memory"
    (link,) = record["calibration"]["links"]
    assert (link["ranks"], link["backend"]) == (2, "gloo") and link["gb_per_s"] > 0
    assert [row["micro_batch"] for row in record["job"]["predicted"]] == [2, 4]
    assert record["job"]["bottleneck"]["part"] in ("data", "compute", "communication")
    assert to_json(list(kept().steps)) == [two["step"], four["step"]]
    assert not list(tmp_path.glob("phalanx-bench-*"))


@pytest.mark.full
@pytest.mark.ranks
def test_one_rank_in_words_then_the_machine_alone_keeps_its_steps():
    code, out, err = run_cli("bench", "digits", "--cpu", "1", "--micro", "4")
    assert code == 0, err
    for words in ("matrix product, fp32", "TFLOP/s", "bottleneck: ", "to change: ", "stored for"):
        assert words in out
    assert "predicted before, and measured" in out
    before = kept()
    code, out, err = run_cli("bench", "--cpu", "1", "--json")
    assert code == 0, err
    record = json.loads(out)
    assert record["job"] is None
    assert record["calibration"]["product_tflops"]["fp32"] > 0
    assert record["calibration"]["steps"] == []
    assert kept().steps == before.steps
    assert len(before.steps) == 1


@pytest.mark.parametrize(
    ("argv", "slug", "words"),
    [
        (("digits", "--micro", "four"), "bench-micro", "`four`"),
        (("digits", "--micro", "0,8"), "bench-micro", "micro-batch of 0"),
        (("--micro", "8"), "bench-nothing", "phalanx bench digits --micro 8"),
        (("digits", "--cpu", "2", "--micro", "4000"), "bench-samples", "--micro 718"),
        (("digit",), "unknown-job", "did you mean `digits`"),
    ],
)
def test_wrong_requests_are_findings(argv, slug, words):
    code, _, err = run_cli("bench", *argv)
    assert code == 2
    assert f"error[{slug}]" in err and words in err
    assert kept() is None
