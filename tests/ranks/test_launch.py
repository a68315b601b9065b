"""Scripts as their users wrote them, run by `phalanx launch` on 2 CPU ranks: they train, what they
print becomes events, a rank that dies takes none with it, and nothing is left behind."""

import json
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.fixtures.event_lines import read_events
from tests.ranks.command import finish, is_alive, kill, latest, phalanx, rank_pids, start
from tests.ranks.command import wait_for_step as wait_for

# Of libstdc++, while a script ends on a busy machine: seen twice, after the last step of one with
# Accelerate and of one with HF Trainer, and why is not known. The run starts again and finishes.
ABORTED = "terminate called without an active exception"
SCRIPTS = Path(__file__).parents[1] / "fixtures" / "scripts_launched"


def launch_in(folder, *words):
    """Launch on 2 ranks, once more where torch aborted at the end of the script: what it printed,
    and the run."""
    for number in range(4):
        place = folder / str(number)
        place.mkdir()
        code, out, err = phalanx("launch", "--cpu", "2", *words, cwd=place)
        assert code == 0, err + out
        run = latest(place)
        if not any(ABORTED in run.log_file(rank).read_text() for rank in range(2)):
            return out, run
        print("torch aborted at the end of the script: once more")
    raise AssertionError(ABORTED)


def losses(run):
    steps = [e.data for e in read_events(run.events) if e.kind == "step"]
    assert {step["source"] for step in steps} == {"output"}
    return {step["step"]: step["loss"] for step in steps if step["loss"] is not None}


def findings(run):
    found = [e.data for e in read_events(run.events)]
    ends = [finding for data in found for finding in data.get("findings", [])]
    return [data["finding"] for data in found if "finding" in data] + ends


def slugs(run):
    return [finding["slug"] for finding in findings(run)]


def wait_for_both(process, cwd):
    """Both ranks have printed their first step, which is an event of whichever came first."""
    run = wait_for(process, cwd, 1)
    while not all("step 1" in run.log_file(rank).read_text() for rank in (0, 1)):
        assert process.poll() is None, finish(process)
        time.sleep(0.05)
    return run


def write(tmp_path, text):
    (tmp_path / "script.py").write_text(text)
    return "script.py"


def test_a_script_for_torchrun_is_restarted_and_resumes(tmp_path):
    script = [str(SCRIPTS / "ddp.py"), "--steps", "12", "--sleep", "0.2"]
    process = start("launch", "--cpu", "2", "--resume-with", "--resume yes", *script, cwd=tmp_path)
    run = wait_for(process, tmp_path, 4)
    kill(rank_pids(run)[1])
    code, out, err = finish(process)
    assert code == 0, err
    assert out.count("of world size 2") == 4, "both ranks in both attempts"
    assert "[rank 0] resumed from step" in out
    assert "rank 1 was killed by SIGKILL" in err
    assert slugs(run) == ["rank-killed", "restarted"]
    again = [e.data["step"] for e in read_events(run.events) if e.kind == "step" and e.attempt]
    assert again[0] > 4, "the second attempt goes on from the script's own checkpoint"
    assert again[-1] == 12
    assert set(losses(run)) == set(range(1, 13))
    outcome = read_events(run.events)[-1]
    assert (outcome.kind, outcome.data["status"], outcome.data["step"]) == (
        "outcome",
        "finished",
        12,
    )
    assert (run.logs / "rank-1.log").read_text().count("--- attempt") == 2
    usage = [e.data for e in read_events(run.events) if e.kind == "usage"]
    assert {sample["rank"] for sample in usage} == {0, 1}
    assert all(sample["memory_bytes"] > 2**20 for sample in usage)
    assert list((run.path / "tensorboard").iterdir())


@pytest.mark.full
def test_a_script_for_accelerate(tmp_path):
    options = ["--mixed-precision", "bf16", "--gradient-accumulation", "2"]
    script = str(SCRIPTS / "accelerate_script.py")
    out, run = launch_in(tmp_path, *options, script)
    assert "processes 2 precision bf16 accumulation 2 device cpu" in out
    found = losses(run)
    assert sorted(found)[-1] == 16, "two epochs of 8 steps, counted on"
    assert "8/8 [" in out and f"loss={found[16]:.4f}]" in out
    assert slugs(run) == []


@pytest.mark.full
def test_a_script_with_hf_trainer(tmp_path):
    script = str(SCRIPTS / "hf_trainer.py")
    out, run = launch_in(tmp_path, script, "out")
    assert "[rank 0] world size 2" in out
    assert set(losses(run)) == {2, 4, 6, 8}
    evaluations = [e.data for e in read_events(run.events) if e.kind == "evaluate"]
    assert [e["step"] for e in evaluations] == [4, 8]
    assert "eval_loss" in (run.path / "results.csv").read_text()
    assert slugs(run) == []


@pytest.mark.full
def test_a_script_with_lightning(tmp_path):
    script = str(SCRIPTS / "lightning_script.py")
    out, run = launch_in(tmp_path, "--python", sys.executable, script)
    assert out.count("world size 2") == 2
    assert losses(run)
    assert slugs(run) == []


def test_the_exit_code_of_the_rank_that_failed_passes_through(tmp_path):
    script = write(
        tmp_path,
        "import os, sys, time\nprint('step 1 loss 0.5')\n"
        "if os.environ['RANK'] == '1':\n    raise SystemExit(7)\ntime.sleep(60)\n",
    )
    code, _, _ = phalanx("launch", "--cpu", "2", "--max-restarts", "0", script, cwd=tmp_path)
    assert code == 7
    finding = findings(latest(tmp_path))[-1]
    assert finding["what"] == "rank 1 left with exit code 7"


def test_a_crash_before_the_first_step_is_tried_twice(tmp_path):
    script = write(tmp_path, "def f():\n    raise ValueError('no such data')\nf()\n")
    code, out, err = phalanx("launch", "--cpu", "1", script, cwd=tmp_path)
    assert code == 1
    assert "[rank" not in out, "one rank needs no name"
    assert slugs(latest(tmp_path)) == ["script-failed", "restarted", "script-failed", "crash-loop"]
    assert "rank 0 left with exit code 1: ValueError: no such data" in err
    assert 'script.py", line 2, in f' in err


# With a process of its own, as a loader has.
LIVES = """
import os, signal, subprocess, sys, time
child = subprocess.Popen(["sleep", "300"])
def save(number, frame):
    print("saving", flush=True)
    if sys.argv[1] == "yields":
        child.kill()
        sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("child", child.pid)
print("step 1 loss 0.5")
while True:
    time.sleep(0.1)
"""
CHILD = re.compile(r"child (\d+)")


@pytest.mark.parametrize(("manner", "signals"), [("yields", 1), ("stays", 2)])
def test_signals_reach_the_ranks_and_the_second_ends_them(tmp_path, manner, signals):
    process = start("launch", "--cpu", "2", write(tmp_path, LIVES), manner, cwd=tmp_path)
    run = wait_for_both(process, tmp_path)
    pids = rank_pids(run)
    for _ in range(signals):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
    code, out, err = finish(process)
    assert out.count("saving") == 2
    assert code == (0 if manner == "yields" else 130), err
    assert not any(is_alive(pid) for pid in pids.values())
    assert not any(is_alive(int(pid)) for pid in CHILD.findall(out))


def test_nothing_outlives_a_killed_command(tmp_path):
    process = start("launch", "--cpu", "2", write(tmp_path, LIVES), "stays", cwd=tmp_path)
    run = wait_for_both(process, tmp_path)
    children = [CHILD.search(run.log_file(rank).read_text())[1] for rank in (0, 1)]
    pids = [*rank_pids(run).values(), *map(int, children)]
    assert all(map(is_alive, pids))
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 20
    while any(is_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(is_alive(pid) for pid in pids)


# The first rank of each pair listens, the second connects.
WORLDS = """
import os, pathlib, socket, sys, time
rank = int(os.environ["RANK"])
file = pathlib.Path(f"port-{rank // 2}")
if sys.argv[1] == "pairs" and rank % 2 == 0:
    server = socket.create_server(("127.0.0.1", 0))
    file.with_suffix(".tmp").write_text(str(server.getsockname()[1]))
    file.with_suffix(".tmp").replace(file)
    kept = server.accept()[0]
    kept.send(b"1")
elif sys.argv[1] == "pairs":
    while not file.exists():
        time.sleep(0.05)
    kept = socket.create_connection(("127.0.0.1", int(file.read_text())))
    kept.recv(1)  # the other end is a process's, no longer the kernel's
print("step 1 loss 0.5")
time.sleep(8)  # until they are looked at, on a busy machine too
"""


@pytest.mark.parametrize(
    ("manner", "ranks", "expected"),
    [("alone", 2, ["no-process-group"]), ("pairs", 2, []), ("pairs", 4, ["several-worlds"])],
)
def test_ranks_that_train_alone_are_found(tmp_path, manner, ranks, expected):
    script = write(tmp_path, WORLDS)
    code, out, err = phalanx("launch", "--cpu", str(ranks), script, manner, cwd=tmp_path)
    assert code == 0, err + out
    assert slugs(latest(tmp_path)) == expected


def test_results_that_a_script_writes_become_events(tmp_path):
    (tmp_path / "runs" / "detect" / "old").mkdir(parents=True)
    header = "epoch,time,train/box_loss,train/cls_loss,metrics/mAP50(B),val/box_loss"
    (tmp_path / "runs" / "detect" / "old" / "results.csv").write_text(f"{header}\n1,1,9,9,0,9\n")
    script = write(
        tmp_path,
        "import pathlib, time\nfolder = pathlib.Path('runs/detect/train')\nfolder.mkdir()\n"
        f"with (folder / 'results.csv').open('w') as file:\n    print('{header}', file=file)\n"
        "    for epoch in (1, 2):\n        time.sleep(0.2)\n"
        "        print(f'{epoch},1.5,{1 / epoch},0.5,0.25,2.0', file=file, flush=True)\n",
    )
    code, out, err = phalanx("launch", "--cpu", "1", script, cwd=tmp_path)
    assert code == 0, err + out
    found = [e.data for e in read_events(latest(tmp_path).events) if e.kind in ("step", "evaluate")]
    assert {data["source"] for data in found} == {"file"}
    assert [(d["epoch"], d["loss"]) for d in found if "loss" in d] == [(1, 1.5), (2, 1.0)]
    assert found[-1]["metrics"] == {"metrics/map50(b)": 0.25, "val/box_loss": 2.0}


def test_secrets_reach_the_ranks_and_stay_out_of_the_run(tmp_path):
    script = write(
        tmp_path,
        "import os, sys\nassert os.environ['WANDB_API_KEY'] == sys.argv[2] == 'CANARY' + '1'\n",
    )
    words = ["--token", "CANARY1"]
    env = {"WANDB_API_KEY": "CANARY1", "NCCL_DEBUG": "WARN"}
    code, out, err = phalanx("launch", "--cpu", "1", script, *words, cwd=tmp_path, env=env)
    assert code == 0, err + out
    run = latest(tmp_path)
    files = [path for path in run.path.rglob("*") if path.is_file()]
    assert not [path for path in files if b"CANARY1" in path.read_bytes()]
    assert "NCCL_DEBUG" in json.loads(run.launch_file.read_text())["passed_on"]


def test_spent_restarts_are_said_once(tmp_path):
    script = tmp_path / "fails.py"
    script.write_text("print('step 1 loss 0.5', flush=True)\nraise SystemExit(3)\n")
    words = ("--max-restarts", "1", "--no-tensorboard", str(script))
    code, out, err = phalanx("launch", "--cpu", "1", *words, cwd=tmp_path)
    assert code == 3, err + out
    assert (out + err).count("[restarts-spent]") == 1
    assert (out + err).count("[script-failed]") == 2  # of each attempt
    assert slugs(latest(tmp_path)).count("restarts-spent") == 1
