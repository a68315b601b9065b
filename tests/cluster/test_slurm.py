"""`phalanx slurm` with a real Slurm: refused before it is submitted, run, ended, queued again."""

import subprocess
import time
from pathlib import Path

import pytest

from phalanx.errors import ExitCode
from phalanx.run.directory import RunDirectory
from tests.cli.command import run_cli
from tests.fixtures.event_lines import read_events
from tests.ranks.runs import assert_same_bits, outcomes

# Slow until it is queued again, so that it is caught in the middle and done soon after.
RECIPE = '''"""Digits that wait."""
import os
import time

from phalanx.recipes.digits.recipe import DigitsRecipe


class Waiting(DigitsRecipe):
    """Digits that wait under Slurm, until they are queued again."""

    def loss(self, model, batch, keys):
        if "RANK" in os.environ and "SLURM_JOB_ID" in os.environ:
            assert os.environ["WANDB_API_KEY"] == "canary-" + "of-the-ranks"
            if "SLURM_RESTART_COUNT" not in os.environ:
                time.sleep(1)
        return super().loss(model, batch, keys)
'''
JOB = """\
recipe: waiting.py:Waiting
epochs: 2
global_batch_size: 64
micro_batch_size: 32
determinism: exact
devices: {cpu: 1}
options: {width: 4}
logging: {every: 1, tensorboard: false}
"""
SCRIPTS = Path(__file__).parents[1] / "fixtures" / "scripts_launched"
SOON = "StartTime=now+6seconds"  # munge's cred_expire is 5 s
SECRET = "canary-of-the-ranks"


def make_folder(parent):
    """A user's folder with a job, named as badly as folders are."""
    folder = parent / 'it\'s $(touch pwned); "mine" é'
    folder.mkdir()
    (folder / "waiting.py").write_text(RECIPE)
    (folder / "my job.yaml").write_text(JOB)
    return folder


@pytest.fixture
def folder(tmp_path, slurm, monkeypatch):
    folder = make_folder(tmp_path)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    return folder


@pytest.fixture(scope="module")
def begun(cluster, tmp_path_factory):
    """A run on two nodes to which Slurm will send its signal: it looks twice a minute, and the
    other tests run meanwhile. Gives the folder and the job's number."""
    folder = make_folder(tmp_path_factory.mktemp("begun"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("SLURM_CONF", str(cluster))
        patch.setenv("WANDB_API_KEY", SECRET)
        # All of its half an hour is within 175 s of the limit, once that is made 3 minutes.
        argv = ["--nodes", "2", "--name", "first", "--time", "30", "--signal-s", "175"]
        return folder, submit("my job.yaml", *argv)


def submit(*argv):
    """Submit a job: its number."""
    code, out, err = run_cli("slurm", *argv)
    assert code == 0, err
    return out.split()[1].rstrip(",")


def ask(*argv):
    return subprocess.run(argv, capture_output=True, text=True, timeout=30, check=True).stdout


def state_of(number):
    return ask("squeue", "-h", "-t", "all", "-j", number, "-o", "%T").strip()


def wait_for(is_done, number, timeout_s=240):
    deadline = time.monotonic() + timeout_s
    while not is_done():
        logs = "".join(path.read_text() for path in Path("logs").glob(f"*_{number}.???"))
        assert time.monotonic() < deadline, f"{state_of(number)}\n{logs}"
        time.sleep(0.2)


def steps(run):
    if not run.events.is_dir():
        return 0
    return max((e.data["step"] for e in read_events(run.events) if e.kind == "step"), default=0)


def test_what_the_cluster_cannot_do_is_said_before_it_is_submitted(begun, folder):
    before = ask("squeue", "-h", "-t", "all", "-o", "%i")
    wrong = {
        "slurm-partition": ["--partition", "mains"],
        "slurm-gpus": ["--gpus-per-node", "9"],
        "slurm-time": ["--partition", "short", "--time", "1:00:00"],
        "slurm-memory": ["--mem", "1T"],
        "slurm-cpus": ["--cpus-per-task", "17"],
        "slurm-constraint": ["--constraint", "tinny"],
        "slurm-nodes": ["--nodes", "3"],
    }
    for slug, argv in wrong.items():
        code, _, err = run_cli("slurm", "digits", *argv)
        assert code == ExitCode.USAGE
        assert f"error[{slug}]" in err
    _, _, err = run_cli("slurm", "digits", *wrong["slurm-gpus"], *wrong["slurm-memory"])
    assert "has 8 GPUs at most" in err  # both at once, each with its number
    assert "has 62.5 GiB at most" in err
    assert "(did you mean `tiny`?)" in run_cli("slurm", "digits", *wrong["slurm-constraint"]).err
    code, out, err = run_cli("slurm", "digits", "--gpus-per-node", "pretended:4", "--print")
    assert code == 0, err
    assert "#SBATCH --gpus-per-node=pretended:4\n#SBATCH --cpus-per-task=8\n" in out
    assert ask("squeue", "-h", "-t", "all", "-o", "%i") == before
    assert not Path("logs").exists()


@pytest.mark.full
def test_cancelled_job_saves_and_is_not_queued_again(begun, folder):
    first = RunDirectory(begun[0] / "runs" / f"first_{begun[1]}")
    number = submit("my job.yaml", "--cpu", "2", "--output", "my 'runs'")
    run = RunDirectory(folder / "my 'runs'" / f"my-job_{number}")
    wait_for(lambda: steps(first) >= 2, begun[1])
    # Slurm now finds that less than 175 s are left, and sends the signal at its next look.
    subprocess.run(["scontrol", "update", f"JobId={begun[1]}", "TimeLimit=3"], check=True)
    wait_for(lambda: steps(run) >= 2, number)
    assert run_cli("slurm", "cancel", str(run.path)).code == 0
    wait_for(lambda: state_of(number) not in ("RUNNING", "COMPLETING"), number)
    assert state_of(number) == "CANCELLED"
    assert outcomes(run)[-1]["status"] == "stopped"
    assert (run.checkpoints / f"checkpoint-{outcomes(run)[-1]['step']}").is_dir()
    assert f"stopped at step {outcomes(run)[-1]['step']}" in run_cli("slurm", "status", number).out
    assert not list(folder.rglob("pwned"))


@pytest.mark.full
def test_time_limit_saves_queues_again_and_ends_as_the_unbroken_run(begun, slurm, monkeypatch):
    folder, number = begun
    monkeypatch.chdir(folder)
    run = RunDirectory(folder / "runs" / f"first_{number}")
    argv = ["--cpu", "2", "--name", "whole"]
    assert run_cli("train", "my job.yaml", *argv).code == 0  # meanwhile
    wait_for(lambda: state_of(number) == "PENDING", number)
    stopped_at = outcomes(run)[-1]["step"]
    assert 2 <= stopped_at < 46
    # Its second turn has the time it needs, and waits no longer than old credentials live.
    words = [f"JobId={number}", "TimeLimit=30", SOON]
    subprocess.run(["scontrol", "update", *words], check=True)
    wait_for(lambda: state_of(number) == "COMPLETED", number)
    assert_same_bits(run, RunDirectory(folder / "runs" / "whole"))

    status = run_cli("slurm", "status").out
    assert "finished at step 46" in status
    code, logs, err = run_cli("slurm", "logs", f"runs/first_{number}", "-n", "100")
    assert code == 0, err
    assert "queued again (1 of 5)" in logs  # the first turn's output is still there
    assert f"continues at step {stopped_at}" in logs
    assert "node 1: node2, " in logs
    assert "rank 1: cpu on node2" in logs
    # The ranks had it (their loss asserts that); no file of ours has.
    for path in folder.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
    assert not list(folder.rglob("pwned"))


@pytest.mark.full
def test_a_job_that_must_give_way_saves_and_goes_on_when_there_is_room(folder):
    number = submit("my job.yaml", "--nodes", "2", "--partition", "spare", "--name", "patient")
    run = RunDirectory(folder / "runs" / f"patient_{number}")
    wait_for(lambda: steps(run) >= 2, number)
    argv = ["--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null"]
    subprocess.run(["sbatch", *argv, "--wrap=sleep 1"], check=True)
    wait_for(lambda: state_of(number) == "PENDING", number, timeout_s=100)
    stopped_at = outcomes(run)[-1]["step"]
    assert outcomes(run)[-1]["status"] == "stopped" and stopped_at < 46
    assert (run.checkpoints / f"checkpoint-{stopped_at}").is_dir()
    subprocess.run(["scontrol", "update", f"JobId={number}", SOON], check=True)
    wait_for(lambda: state_of(number) == "COMPLETED", number)
    assert f"continues at step {stopped_at}" in run_cli("slurm", "logs", number, "-n", "200").out


@pytest.mark.full
def test_a_script_of_the_users_own_is_queued_again_on_two_nodes_and_resumes(folder):
    script = [str(SCRIPTS / "ddp.py"), "--steps", "30", "--sleep", "0.3"]
    argv = ["--cpu", "1", "--nodes", "2", "--name", "own", "--resume-with", "--resume yes"]
    number = submit("launch", *argv, *script)
    run = RunDirectory(folder / "runs" / f"own_{number}")
    wait_for(lambda: steps(run) >= 3, number)
    # As Slurm does it before the time limit, without waiting for its next look.
    subprocess.run(["scancel", "--batch", "--signal=USR1", number], check=True)
    wait_for(lambda: state_of(number) == "PENDING", number)
    assert outcomes(run)[-1]["exit_code"] == ExitCode.STOPPED
    subprocess.run(["scontrol", "update", f"JobId={number}", SOON], check=True)
    wait_for(lambda: state_of(number) == "COMPLETED", number)
    again = RunDirectory(folder / "runs" / f"own_{number}_turn2")
    assert steps(again) == 30
    assert "resumed from step" in again.log_file(0).read_text()
    assert "rank 1 of world size 2" in again.log_file(1).read_text()


def test_a_script_is_checked_before_it_is_submitted(folder):
    Path("accelerate.yaml").write_text("num_machines: 2\nnum_processes: 6\n")
    argv = ["--nodes", "2", "--gpus-per-node", "4", "--accelerate-config", "accelerate.yaml"]
    code, _, err = run_cli("slurm", "launch", *argv, "missing.py")
    assert code == ExitCode.USAGE
    assert "error[slurm-ranks]: 8 ranks are asked of Slurm, and 6 in `accelerate.yaml`" in err
    assert "error[launch-script]" in err
