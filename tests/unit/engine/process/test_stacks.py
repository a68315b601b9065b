"""A rank that is asked where it is stuck answers and lives on, whichever thread hears of it."""

import os
import signal
import subprocess
import sys
import time

import pytest

from phalanx.engine.process.stacks import collect_stacks
from phalanx.run.directory import RunDirectory

# A thread that was there before has no signal blocked, as those of the CUDA driver have not.
RANK = """
import ctypes, sys, threading, time
from pathlib import Path
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
from phalanx.engine.process.stacks import answer_when_asked, answer_with_collectives
from phalanx.run.directory import RunDirectory
import torch.distributed as dist
answer_when_asked()
if sys.argv[2] == "serves":
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    dist.barrier()
    answer_with_collectives(RunDirectory(Path(sys.argv[1])), 0)
def interrupted():
    print("ready", flush=True)
    ctypes.PyDLL(None).sleep(60)  # ends at the first signal that is handled
def stuck():
    print("ready", flush=True)
    while True:
        time.sleep(0.01)
if sys.argv[2] == "interrupted":
    interrupted()
    time.sleep(60)
stuck()
"""


@pytest.fixture
def run(tmp_path):
    run = RunDirectory(tmp_path)
    run.log_file(0).parent.mkdir()
    return run


def start(run, serves):
    with run.log_file(0).open("ab") as log:
        rank = subprocess.Popen(
            [sys.executable, "-c", RANK, str(run.path), serves], stdout=subprocess.PIPE, stderr=log
        )
    assert rank.stdout.readline() == b"ready\n"
    return rank


@pytest.mark.parametrize("serves", ["serves", "not yet"])
@pytest.mark.skipif(sys.platform != "linux", reason="collectives are asked for on Linux")
def test_stacks_and_collectives_of_a_rank_that_lives_on(run, serves):
    rank = start(run, serves)
    try:
        for _ in range(3):
            (answer,) = collect_stacks(run, {0: rank.pid})
            assert "in stuck" in answer.stacks
            assert rank.poll() is None
        if serves == "serves":
            deadline = time.monotonic() + 30
            while not run.collectives_file(0).exists() and time.monotonic() < deadline:
                time.sleep(0.02)
            assert run.collectives_file(0).exists()
        # A stop that is asked for meanwhile is no question.
        os.kill(rank.pid, signal.SIGTERM)
        assert rank.wait(30) == -signal.SIGTERM
    finally:
        rank.kill()
        rank.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="collectives are asked for on Linux")
def test_stacks_show_the_call_that_asking_ends(run, monkeypatch):
    kill = os.kill

    def slow_kill(pid, number):  # the rank handles each signal before the next one is sent
        kill(pid, number)
        time.sleep(0.5)

    rank = start(run, "interrupted")
    try:
        monkeypatch.setattr(os, "kill", slow_kill)
        (answer,) = collect_stacks(run, {0: rank.pid})
        assert "in interrupted" in answer.stacks
    finally:
        rank.kill()
        rank.wait()
