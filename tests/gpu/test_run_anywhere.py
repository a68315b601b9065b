"""On a real GPU: what NCCL says of itself, samples of a launched script, the ladder, a job under
torchrun, and a detached run that is stopped."""

import subprocess
import sys
from pathlib import Path

from tests.fixtures.event_lines import read_events
from tests.ranks.command import finish, latest, phalanx, start, wait_for_step

SCRIPTS = Path(__file__).parents[1] / "fixtures" / "scripts_launched"
SCRIPT = """
import time, torch
x = torch.randn(4096, 4096, device="cuda")
end = time.time() + 8
step = 0
while time.time() < end:
    step += 1
    x = torch.tanh(x @ x)
    torch.cuda.synchronize()
    if step % 100 == 0:
        print(f"step {step} loss {x.mean().item():.4f}", flush=True)
"""


def test_nccl_writes_into_a_file_of_each_rank(tmp_path):
    # A script: Phalanx's own strategies say nothing over NCCL where there is one rank.
    words = ["launch", "--gpus", "1", "--debug-comm", str(SCRIPTS / "ddp.py")]
    code, out, err = phalanx(*words, cwd=tmp_path, timeout_s=180)
    assert code == 0, err
    assert "rank 0 of world size 1 on cuda:0" in out + err
    assert "NCCL INFO" in latest(tmp_path).nccl_log(0).read_text()


def test_samples_of_a_script_have_its_gpu(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    code, _, err = phalanx("launch", "--gpus", "1", "script.py", cwd=tmp_path, timeout_s=120)
    assert code == 0, err
    usage = [e.data for e in read_events(latest(tmp_path).events) if e.kind == "usage"]
    assert usage
    assert all(sample["gpu_memory_bytes"] > 0 for sample in usage)
    assert max(sample["gpu_percent"] for sample in usage) > 10


def test_the_ladder_on_one_gpu_and_shared_by_two_ranks(tmp_path):
    code, out, err = phalanx(
        "train", "digits", "--ladder", "--gpus", "1", "--steps", "10", cwd=tmp_path, timeout_s=300
    )
    assert code == 0, err
    assert "rung 1 of 1: 1 rank on cuda, 5 steps" in out
    shared = ["--gpus", "0,0", "--backend", "gloo", "--steps", "10"]
    code, out, err = phalanx("train", "digits", "--ladder", *shared, cwd=tmp_path, timeout_s=300)
    assert code == 0, err
    assert "rung 3 of 3: 2 ranks on cuda, 5 steps" in out


def test_a_job_under_torchrun(tmp_path):
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"),
            *("-m", "phalanx", "train", "digits", "--steps", "10"),
        ],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    code, _, err = finish(process, timeout_s=180)
    assert code == 0, err
    assert "note[torchrun-joined]" in err and "cuda:0" in err


def test_a_detached_run_is_stopped(tmp_path):
    process = start("train", "digits", "--epochs", "100000", "--detach", cwd=tmp_path)
    try:
        code, out, err = finish(process, timeout_s=180)
        assert code == 0, err
        assert "phalanx stop" in out
        alive = subprocess.Popen(["sleep", "200"])  # what wait_for_step watches
        try:
            wait_for_step(alive, tmp_path, 10, timeout_s=120)
        finally:
            alive.kill()
            alive.wait()
    finally:
        code, out, err = phalanx("stop", cwd=tmp_path)
    assert code == 0, err
    assert "stopped at step" in out
