"""A real Slurm on this machine, with two nodes and 8 pretended GPUs on each, for as long as the
tests run: each node is a host of its own (hosts.py).

Its ports are free ones and all of its files lie in a folder of its own: several can run at a time.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cluster.hosts import Hosts, why_not

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
PACKAGES = "slurmctld slurmd slurm-client munge"

# No cgroups and no accounting: what a container has is enough. A job that is queued again waits
# for as long as munge's credentials live, two minutes by default.
CONF = """\
ClusterName=tiny
SlurmctldHost={host}({gateway})
SlurmctldPort={control}
SlurmdPort={node}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=5
SlurmdSpoolDir={folder}/spool/%n
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=100000,bf_interval=2
MpiDefault=none
PropagateResourceLimits=NONE
GresTypes=gpu
ReturnToService=2
KillWait=20
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=short Nodes=ALL MaxTime=00:30:00 State=UP
PartitionName=urgent Nodes=ALL MaxTime=00:30:00 State=UP PriorityTier=9
PartitionName=spare Nodes=ALL MaxTime=00:30:00 State=UP GraceTime=60
"""
NODE = "NodeName={name} NodeAddr={address} CPUs=16 RealMemory=64000 Gres=gpu:pretended:8 \
Feature=tiny State=UNKNOWN"


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """Brings the cluster up: the path of its slurm.conf."""
    missing = [name for name in PROGRAMS if _find(name) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)} here: apt-get install {PACKAGES}")
    if os.geteuid() != 0:
        pytest.skip("a Slurm of our own needs root: it pretends GPUs with device files")
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("slurm")
    hosts = Hosts(2)
    conf = _write(folder, hosts)
    environment = {**os.environ, "SLURM_CONF": str(conf)}
    try:
        hosts.up(also=[f"{hosts.gateway} {_own_name()}"])
        _start(folder, hosts, environment)
        yield conf
    finally:
        subprocess.run(["scancel", "--me"], env=environment, timeout=30, capture_output=True)
        _wait(lambda: not _said(["squeue", "-h"], environment), 30)
        for name in (*(f"slurmd-{node}" for node in hosts.names), "slurmctld", "munged"):
            _end(folder / f"{name}.pid")
        hosts.down()


@pytest.fixture
def slurm(cluster, monkeypatch):
    """The cluster, as a user who has logged in sees it."""
    monkeypatch.setenv("SLURM_CONF", str(cluster))
    for name in [name for name in os.environ if name.startswith(("SBATCH_", "SLURM_JOB"))]:
        monkeypatch.delenv(name)
    return cluster


def _find(name):
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


def _own_name():
    return socket.gethostname().partition(".")[0]


def _write(folder, hosts):
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o400)
    for index in range(8):  # a regular file is no GPU to Slurm: /dev/null under another name
        os.mknod(folder / f"nvidia{index}", 0o20666, os.makedev(1, 3))
    nodes = "\n".join(
        NODE.format(name=name, address=hosts.address(n)) for n, name in enumerate(hosts.names)
    )
    text = CONF.format(
        folder=folder,
        host=_own_name(),
        gateway=hosts.gateway,
        control=_free_port(),
        node=_free_port(),
        nodes=nodes,
    )
    (folder / "slurm.conf").write_text(text)
    (folder / "gres.conf").write_text(
        f"NodeName=node[1-2] Name=gpu Type=pretended File={folder}/nvidia[0-7]\n"
    )
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    return folder / "slurm.conf"


def _start(folder, hosts, environment):
    munge = [f"--{name}-file={folder}/munged.{name}" for name in ("pid", "log", "seed")]
    munge += [f"--key-file={folder}/munge.key", f"--socket={folder}/munge.sock", "--force"]
    nodes = [hosts.argv(n, _find("slurmd"), "-N", name) for n, name in enumerate(hosts.names)]
    for argv in ([_find("munged"), *munge], [_find("slurmctld")], *nodes):
        subprocess.run(argv, env=environment, timeout=30, check=True, capture_output=True)
    idle = ["sinfo", "-h", "-N", "-p", "main", "-t", "idle", "-o", "%n"]
    is_up = _wait(lambda: len(_said(idle, environment).split()) == len(hosts.names), 30)
    assert is_up, (folder / "slurmctld.log").read_text()[-2000:]


def _said(argv, environment):
    done = subprocess.run(argv, env=environment, timeout=30, capture_output=True, text=True)
    return done.stdout.strip()


def _wait(is_done, timeout_s):
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if is_done():
            return True
        time.sleep(0.1)
    return False


def _free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def _end(pid_file: Path):
    if not pid_file.is_file():
        return
    with suppress(ProcessLookupError):
        pid = int(pid_file.read_text())
        os.kill(pid, signal.SIGTERM)
        _wait(lambda: not Path(f"/proc/{pid}").exists(), 10)
