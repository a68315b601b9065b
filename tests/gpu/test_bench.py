"""On a real GPU: kernels and memory are seen, and jobs in one process leave nothing behind."""

import json

import pytest
import torch

from phalanx.engine.rank.bench import measure_job_here
from phalanx.prepare.plan import prepare
from tests.gpu.test_strategies import LEARNERS
from tests.ranks.command import phalanx

MODEL = ("width=512", "heads=8", "depth=8", "length=512", "symbols=8192", "samples=256")
JOB = f"{LEARNERS}:SequenceRecipe"


def test_a_step_is_split_and_kept(tmp_path):
    env = {"XDG_CACHE_HOME": str(tmp_path)}
    argv = ("--gpus", "0,", "--precision", "bf16", "--steps", "9", "--batch-size", "16", *MODEL)
    code, out, err = phalanx(
        "bench", JOB, *argv, "--micro", "4,16", "--json", cwd=tmp_path, env=env, timeout_s=240
    )
    assert code == 0, err
    record = json.loads(out)
    small, large = (measured["step"] for measured in record["job"]["measured"])
    for step in (small, large):
        parts = [step[f"{p}_s"] for p in ("data", "compute", "communication", "overhead")]
        assert sum(parts) == pytest.approx(step["step_s"]) and min(parts) >= 0
        assert step["communication_s"] == 0
        assert 0 < step["allocated_bytes"] <= step["reserved_bytes"] < step["process_bytes"]
    assert large["allocated_bytes"] > small["allocated_bytes"]
    assert large["compute_s"] > small["compute_s"]
    rates = record["calibration"]
    assert rates["product_tflops"]["bf16"] > rates["product_tflops"]["fp32"]
    assert 0 < rates["kernel_us"] < 100 and rates["copy_gb_per_s"] > 100
    assert rates["context_bytes"] > 2**26


def test_jobs_in_one_process_leave_nothing_behind():
    prepared = prepare(
        JOB, ["devices.gpus=[0]", "precision=bf16", "steps=9", "global_batch_size=8", *MODEL]
    )
    before = torch.cuda.memory_allocated()
    first, second = (
        measure_job_here(prepared.job, prepared.plan, [8], is_split=is_split)[0].step
        for is_split in (False, True)
    )
    assert torch.cuda.memory_allocated() <= before + 2**20
    assert first.allocated_bytes == pytest.approx(second.allocated_bytes, rel=0.01)


def test_memory_that_runs_out_ends_it_in_order():
    prepared = prepare(
        JOB, ["devices.gpus=[0]", "precision=fp32", "steps=9", "global_batch_size=8", *MODEL]
    )
    room = torch.cuda.mem_get_info()[0]
    hog = torch.empty(room - 4 * 2**30, dtype=torch.uint8, device="cuda")
    measured = measure_job_here(prepared.job, prepared.plan, [1, 128, 256])
    assert [(m.micro_batch, m.missing) for m in measured] == [(1, None), (128, "memory")]
    del hog
