"""What was measured is kept, found again and merged; a broken file is as good as none."""

from dataclasses import replace

import pytest

from phalanx.machine.calibration import Calibration, MeasuredLink, MeasuredStep
from phalanx.prepare.calibrations import (
    calibration_file,
    find_calibration,
    read_calibration,
    store_calibration,
)
from tests.cli.command import fixture_machine


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


STEP = MeasuredStep(
    job_key="a",
    micro_batch=8,
    accumulation=1,
    step_s=0.1,
    data_s=0.01,
    compute_s=0.06,
    communication_s=0.02,
    overhead_s=0.01,
    fetch_s=1e-4,
    process_bytes=123,
)
KIND = "NVIDIA A100-SXM4-80GB"
MEASURED = Calibration(
    device=KIND,
    measured_at="2026-01-01",
    torch_version="2.11",
    product_tflops={"fp32": 15.0, "bf16": 250.0},
    copy_gb_per_s=1700.0,
    links=(MeasuredLink(ranks=8, backend="nccl", latency_us=20.0, gb_per_s=230.0),),
    steps=(STEP,),
)


def test_what_is_stored_is_found_by_the_machine():
    store_calibration(MEASURED)
    assert find_calibration(fixture_machine("8xa100")) == (MEASURED, [])
    assert find_calibration(fixture_machine("2x4090")) == (None, [])
    assert find_calibration(fixture_machine("8xa100"), "cpu") == (None, [])


def test_new_figures_join_the_old_ones():
    store_calibration(MEASURED)
    other = replace(STEP, micro_batch=16)
    again = replace(STEP, step_s=0.2)
    two = MeasuredLink(ranks=2, backend="nccl", latency_us=9.0, gb_per_s=200.0)
    later = replace(
        MEASURED,
        measured_at="2026-01-02",
        product_tflops={"fp32": 16.0},
        copy_gb_per_s=None,
        links=(two,),
        steps=(other, again),
    )
    store_calibration(later)
    kept, _ = read_calibration(KIND)
    assert kept.product_tflops == {"fp32": 16.0, "bf16": 250.0}
    assert kept.copy_gb_per_s == 1700.0
    assert kept.links == (*MEASURED.links, two)
    assert kept.steps == (other, again)
    assert kept.measured_at == "2026-01-02"


def test_another_torch_begins_anew():
    store_calibration(MEASURED)
    newer = replace(MEASURED, torch_version="2.12", steps=(), links=())
    store_calibration(newer)
    assert read_calibration(KIND)[0] == newer


def test_the_file_does_not_grow_without_end():
    store_calibration(
        replace(MEASURED, steps=tuple(replace(STEP, micro_batch=n) for n in range(400)))
    )
    store_calibration(
        replace(MEASURED, steps=tuple(replace(STEP, micro_batch=n) for n in range(300, 700)))
    )
    steps = read_calibration(KIND)[0].steps
    assert [s.micro_batch for s in steps] == list(range(200, 700))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"schema_version": 1}', '{"schema_version": 9}', "\x00"]
)
def test_a_broken_file_is_ignored_said_and_replaced(text):
    path = calibration_file(KIND)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    found, findings = read_calibration(KIND)
    assert found is None
    assert [(f.slug, f.severity) for f in findings] == [("calibration-unreadable", "warning")]
    assert str(path) in findings[0].what
    store_calibration(MEASURED)
    assert read_calibration(KIND) == (MEASURED, [])
