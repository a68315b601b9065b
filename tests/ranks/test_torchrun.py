"""A job that the real torchrun starts: its processes are the ranks, and the bits are the same."""

import os
import signal
import subprocess
import sys

import pytest

from tests.fixtures.event_lines import read_events
from tests.ranks.command import finish, is_alive, kill, latest, phalanx, rank_pids, wait_for_step
from tests.ranks.runs import RECIPE, assert_same_bits, losses, outcomes

JOB = f"""
recipe: {RECIPE}
steps: 60
global_batch_size: 10
precision: fp64
micro_batch_size: 3
seed: 3
logging: {{every: 5, tensorboard: false}}
checkpoint: {{every: 20 steps}}
evaluate: {{every: null}}
options: {{width: 64}}
"""


def torchrun(folder, *argv, ranks=2, options=(), module="phalanx"):
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *(f"--nproc-per-node={ranks}", *options, "-m", module, *argv),
        ],
        cwd=folder,
        env={**os.environ, "PHALANX_TEST": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(process):
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)  # torchrun takes its processes with it
        try:
            process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
    process.communicate()


@pytest.fixture
def started():
    """Processes that no test leaves behind."""
    all_of_them = []
    yield all_of_them
    for process in all_of_them:
        end(process)


@pytest.mark.full
def test_a_job_under_torchrun_equals_the_same_job_alone(tmp_path, started):
    (tmp_path / "job.yaml").write_text(JOB)
    started.append(torchrun(tmp_path, "train", "job.yaml", "--name", "joined"))
    code, _, err = finish(started[0], timeout_s=180)
    assert code == 0, err
    joined = latest(tmp_path)
    assert joined.name == "joined"
    assert err.count("world size 2 over gloo") == 1, "only the first rank speaks"
    assert "note[torchrun-joined]: the 2 processes that torchrun has started" in err
    assert [path.name for path in (tmp_path / "runs").iterdir() if not path.is_symlink()] == [
        "joined"
    ]
    code, _, err = phalanx("train", "job.yaml", "--cpu", "2", cwd=tmp_path)
    assert code == 0, err
    alone = latest(tmp_path)
    assert losses(joined) == losses(alone)
    assert_same_bits(joined, alone)
    assert outcomes(joined)[-1]["status"] == "finished"


def test_a_plan_for_another_number_of_ranks_is_refused(tmp_path, started):
    (tmp_path / "job.yaml").write_text(JOB)
    started.append(torchrun(tmp_path, "train", "job.yaml", "--cpu", "3"))
    code, _, err = finish(started[0], timeout_s=180)
    assert code != 0
    assert "error[torchrun-ranks]: the plan has 3 ranks, torchrun has started 2" in err
    assert not (tmp_path / "runs").exists()


def test_launch_inside_torchrun_is_refused(tmp_path):
    env = {
        "TORCHELASTIC_RUN_ID": "none",
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    code, _, err = phalanx("launch", "--cpu", "2", "script.py", cwd=tmp_path, env=env)
    assert code == 2
    assert "error[launch-in-torchrun]" in err and "WORLD_SIZE=2" in err
    code, _, err = phalanx("train", "digits", "--detach", cwd=tmp_path, env=env)
    assert code == 2
    assert "error[torchrun-option]: --detach" in err


@pytest.mark.full
def test_torchrun_starts_again_and_the_run_goes_on(tmp_path, started):
    text = JOB.replace("steps: 60", "steps: 400")
    (tmp_path / "job.yaml").write_text(text)
    started.append(torchrun(tmp_path, "train", "job.yaml", options=["--max-restarts=1"]))
    run = wait_for_step(started[0], tmp_path, 40, timeout_s=120)
    pids = rank_pids(run)
    kill(pids[1])
    code, _, err = finish(started[0], timeout_s=180)
    assert code == 0, err
    assert latest(tmp_path).path == run.path
    assert outcomes(run)[-1]["step"] == 400
    starts = [e.data for e in read_events(run.events) if e.kind == "start"]
    assert any(start["resumed_from"] for start in starts)
    assert not any(map(is_alive, pids.values()))
