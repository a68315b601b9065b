"""`phalanx train` on two hosts that share a file system: they meet, train as one, lose ranks and
each other. The hosts are network namespaces (hosts.py)."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.errors import ExitCode
from phalanx.run.directory import RunDirectory
from tests.cluster.commands import DEADLINE_S, PORT, Commands, pid_of, steps, wait_for
from tests.fixtures.event_lines import read_events
from tests.ranks.runs import assert_same_bits, outcomes

# Waits at chosen steps until the test goes on, so that it is caught in the middle.
RECIPE = '''"""Digits that wait until they are let go."""
import os
import time
from pathlib import Path

from phalanx.recipes.digits.recipe import DigitsRecipe


class Held(DigitsRecipe):
    """Digits, no faster than the test allows."""

    def loss(self, model, batch, keys):
        if "RANK" in os.environ and Path("held").exists():
            time.sleep(0.2)
        return super().loss(model, batch, keys)
'''
JOB = """\
recipe: held.py:Held
epochs: 1
global_batch_size: 64
micro_batch_size: 32
determinism: exact
devices: {cpu: 1}
options: {width: 4}
checkpoint: {every: 2 steps}
evaluate: {every: null}
logging: {every: 1, tensorboard: false}
"""
SCRIPTS = Path(__file__).parents[1] / "fixtures" / "scripts_launched"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "held.py").write_text(RECIPE)
    (tmp_path / "job.yaml").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def commands(hosts, folder):
    made = Commands(hosts, folder)
    yield made
    made.close()


def test_two_hosts_are_one_run_through_a_killed_rank_and_a_stop(hosts, folder, commands):
    held = folder / "held"
    held.touch()  # slow enough for all that follows
    run = RunDirectory(folder / "runs" / "two")
    both = [commands.start(host, "job.yaml", "--name", "two") for host in (1, 0)]
    wait_for(lambda: len(steps(run)) >= 3, commands)
    third = commands.start(1, "job.yaml", "--name", "two")
    os.kill(pid_of(run, 1), signal.SIGKILL)
    wait_for(lambda: "attempt 2" in both[0].said() and steps(run)[-1] >= 5, commands)
    assert third.wait(DEADLINE_S) == ExitCode.USAGE
    assert "is one too many: 2 of 2 nodes are there already" in third.said()
    both[0].send_signal(signal.SIGINT)  # on the host that leads nothing
    assert [child.wait(DEADLINE_S) for child in both] == [ExitCode.STOPPED] * 2, commands.said
    assert outcomes(run)[-1]["status"] == "stopped"
    stopped_at = outcomes(run)[-1]["step"]
    assert (run.checkpoints / f"checkpoint-{stopped_at}").is_dir()
    assert "rank 1 was killed by SIGKILL; the ranks start again" in both[1].said()
    assert f"node 1: node2, {hosts.address(1)} on eth0" in both[1].said()
    assert "rank 1: cpu on node2" in both[1].said()
    used = [event.data for event in read_events(run.events) if event.kind == "usage"]
    assert {sample["rank"] for sample in used} == {0, 1}
    assert all(sample["memory_bytes"] > 2**20 for sample in used)

    held.unlink()
    both = [commands.start(host, "--resume", "runs/two") for host in (0, 1)]
    whole = [sys.executable, "-m", "phalanx", "train", "job.yaml", "--cpu", "2", "--name", "whole"]
    subprocess.run(whole, check=True, capture_output=True, timeout=DEADLINE_S)
    assert [child.wait(DEADLINE_S) for child in both] == [0, 0], commands.said
    assert f"continues at step {stopped_at}" in both[0].said()
    assert_same_bits(run, RunDirectory(folder / "runs" / "whole"))
    assert not list((folder / "runs").glob(".meeting-*"))


@pytest.mark.full
@pytest.mark.parametrize("lost", ["cable", 0, 1])
def test_a_lost_node_ends_the_run_on_all(hosts, folder, commands, lost):
    (folder / "held").touch()
    run = RunDirectory(folder / "runs" / "lost")
    argv = ["job.yaml", "--name", "lost", "devices.node_wait_s=0"]
    both = [commands.start(host, *argv) for host in (0, 1)]
    wait_for(lambda: len(steps(run)) >= 3, commands)
    pids = [pid_of(run, rank) for rank in (0, 1)]
    if lost == "cable":
        hosts.cut(1)
    else:
        both[lost].kill()
    for host in (0, 1):
        code = both[host].wait(DEADLINE_S)
        if lost == host:
            continue
        assert code == ExitCode.FAILED, commands.said
        other = f"node {1 - host} (node{2 - host}, {hosts.address(1 - host)})"
        assert f"error[node-lost]: {other} is lost: " in both[host].said()
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), commands)
    if lost != 0:
        assert outcomes(run)[-1]["status"] == "failed"


@pytest.mark.full
def test_wrong_addresses_are_said_at_once(hosts, folder, commands):
    here = hosts.address(0)
    first = commands.start(0, "job.yaml")
    wait_for(lambda: "waits at" in first.said(), commands)
    with socket.socket() as stranger:
        stranger.settimeout(DEADLINE_S)
        stranger.connect((here, PORT))  # from outside, and it says nothing of use
        stranger.sendall(b"GET / HTTP/1.0\r\n\r\n")
        wrong = {
            "rendezvous-differs": commands.start(1, "job.yaml", rendezvous=f"{here}:{PORT + 1}"),
            "rendezvous-loopback": commands.start(0, "job.yaml", rendezvous="own-node1:29500"),
            "rendezvous-elsewhere": commands.start(1, "job.yaml", "--node-rank", 0),
            "rendezvous-port": commands.start(0, "job.yaml"),
        }
        for slug, child in wrong.items():
            assert child.wait(DEADLINE_S) == ExitCode.USAGE, commands.said
            assert f"error[{slug}]" in child.said()
    assert f"looks for node 0 at port {PORT + 1}, and it waits at port {PORT}" in (
        wrong["rendezvous-differs"].said()
    )
    first.send_signal(signal.SIGINT)
    assert first.wait(DEADLINE_S) == ExitCode.INTERRUPTED, commands.said
    assert list((folder / "runs").iterdir()) == []  # the secret is gone too


@pytest.mark.full
def test_a_plan_for_two_hosts_and_a_job_that_differs(hosts, folder, commands):
    first = commands.start(0, "job.yaml", "--dry-run")
    other = commands.start(1, "job.yaml", "optimizer.lr=0.5")
    assert other.wait(DEADLINE_S) == ExitCode.USAGE, commands.said
    assert "error[nodes-differ]: job.optimizer.lr is " in other.said()
    second = commands.start(1, "job.yaml", "--dry-run")
    assert [child.wait(DEADLINE_S) for child in (first, second)] == [0, 0], commands.said
    assert "devices.cpu = 1 on each of 2 nodes" in first.said()
    assert "only a plan was asked for" in second.said()
    assert list((folder / "runs").iterdir()) == []


def test_nodes_that_do_not_come_are_named(hosts, folder, commands):
    first = commands.start(0, "job.yaml", "--meeting-timeout", 1)
    second = commands.start(1, "job.yaml", "--meeting-timeout", 1, rendezvous="node1:1")
    assert first.wait(DEADLINE_S) == ExitCode.USAGE
    assert "error[nodes-missing]: 1 of 2 nodes are here after 1 s" in first.said()
    assert "phalanx train --nodes 2 --node-rank 1 --rendezvous" in first.said()
    assert second.wait(DEADLINE_S) == ExitCode.USAGE
    assert "error[nodes-missing]" in second.said() or "rendezvous-differs" in second.said()


@pytest.mark.full
def test_a_script_of_the_users_own_on_two_hosts_is_restarted_and_resumes(hosts, folder, commands):
    script = [SCRIPTS / "ddp.py", "--steps", 12, "--sleep", 0.2]
    argv = ["--cpu", 1, "--name", "own", "--resume-with", "--resume yes", *script]
    run = RunDirectory(folder / "runs" / "own")
    both = [commands.start(host, *argv, verb="launch") for host in (0, 1)]
    wait_for(lambda: len(steps(run)) >= 3, commands)
    os.kill(pid_of(run, 1), signal.SIGKILL)
    assert [child.wait(DEADLINE_S) for child in both] == [0, 0], commands.said
    assert "rank 1 was killed by SIGKILL" in both[0].said()
    assert "[rank 0] resumed from step" in both[0].said()
    assert "rank 1: cpu on node2" in both[0].said()
    assert both[1].said().count("[rank 1] rank 1 of world size 2") == 2
    assert run.log_file(1).read_text().count("--- attempt") == 2
    assert steps(run)[-1] == 12
