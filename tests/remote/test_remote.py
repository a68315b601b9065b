"""`phalanx remote` with a real sshd: push, train, a line that drops, attach, pull, stop."""

import json
import os
import re
import shutil
import signal
import subprocess

import psutil
import pytest

from phalanx.errors import ExitCode
from phalanx.job import load_job
from phalanx.run.directory import RunDirectory
from phalanx.run.lock import lock_run
from phalanx.watch.mirror import mirrored
from tests.cli.command import run_cli
from tests.fixtures.event_lines import read_events
from tests.ranks.runs import assert_same_bits, losses, outcomes
from tests.remote.conftest import PYTHON, Server, User, wait_for

# Slow until the file `go` lies beside it, so that it is caught in the middle and done soon after.
RECIPE = '''"""Digits that wait."""
import os
import time
from pathlib import Path

from phalanx.recipes.digits.recipe import DigitsRecipe

CALLS = []


class Waiting(DigitsRecipe):
    """Digits that wait."""

    def loss(self, model, batch, keys):
        if "RANK" in os.environ and "SSH_CONNECTION" in os.environ:
            assert os.environ["WANDB_API_KEY"] == "-".join(("canary", "of-the-ranks"))
            assert os.environ["NCCL_DEBUG"] == "WARN"
            CALLS.append(1)
            if len(CALLS) > 2 and not Path(__file__).with_name("go").exists():
                time.sleep(2)
        return super().loss(model, batch, keys)
'''
JOB = """\
recipe: waiting.py:Waiting
epochs: 2
global_batch_size: 64
devices: {cpu: 1}
options: {width: 4}
logging: {every: 1, tensorboard: false}
"""
SECRET = "canary-of-the-ranks"


@pytest.fixture
def folder(user, tmp_path, monkeypatch):
    """A user's folder with a job, named as badly as folders are, and a remote `lab`."""
    folder = tmp_path / 'it\'s $(touch pwned); "mine" é'
    for path, text in {
        "waiting.py": RECIPE,
        "my job.yaml": JOB,
        ".gitignore": "secret.txt\nignored/\n",
        "secret.txt": "stays",
        "ignored/wanted [1].txt": "goes",
        "ignored/other.txt": "stays",
        "data/raw/big.bin": "stays",
        "data/small.csv": "goes",
        ".git/config": "stays",
        "runs/old/plan.json": "stays",
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    add = run_cli("remote", "add", "lab", user.server.target, "--path", str(user.far))
    assert add.code == 0, add.err
    use = ["remote", "add", "lab", user.server.target, "--path", str(user.far)]
    assert run_cli(*use, "--python", PYTHON).code == 0
    return folder


def project_of(user):
    """The folder over there that this one was pushed into."""
    return next(path for path in user.far.iterdir() if path.name.startswith("it-s-touch-pwned-"))


def steps(run):
    events = read_events(run.events) if run.events.is_dir() else []
    return max((event.data["step"] for event in events if event.kind == "step"), default=0)


def metrics(run):
    return [e.data["metrics"] for e in read_events(run.events) if e.kind == "evaluate"]


def command_lines():
    """What every process of this machine shows of itself."""
    lines = []
    for process in psutil.process_iter():
        try:
            lines.append("\0".join(process.cmdline()))
        except psutil.Error:
            continue
    return lines


def files_with(text, *folders):
    paths = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return [path for path in paths if text.encode() in path.read_bytes()]


def test_a_dropped_line_attach_and_pull_give_what_a_local_run_gives(user, folder, tmp_path):
    command = user.start(
        "remote", "train", "lab", "my job.yaml", "--name", "first", "--include",
        "ignored/wanted [1].txt",
    )  # fmt: skip
    wait_for((user.far / "started/first/pids.json").exists, process=command)
    project = project_of(user)
    run = RunDirectory(project / "runs" / "first")
    wait_for(lambda: steps(run) >= 2, log=user.far / "started/first/output.log")
    assert not [line for line in command_lines() if SECRET in line]
    assert {p.relative_to(project).as_posix() for p in project.rglob("*.*") if p.is_file()} >= {
        "waiting.py",
        "my job.yaml",
        "data/small.csv",
        "ignored/wanted [1].txt",
    }
    for left_out in ("secret.txt", "ignored/other.txt", "data/raw", ".git", "runs/old"):
        assert not (project / left_out).exists(), left_out

    assert user.server.drop() > 0
    at = steps(run)
    wait_for(lambda: steps(run) > at)  # the run has not noticed
    wait_for(lambda: psutil.Process(user.server.process.pid).children())  # connected again
    command.send_signal(signal.SIGINT)
    out, err = command.communicate(timeout=120)
    assert command.returncode == ExitCode.INTERRUPTED, err
    assert "phalanx remote attach lab first" in out
    assert "the connection was lost" in err
    at = steps(run)
    wait_for(lambda: steps(run) > at)  # nor Ctrl-C

    (project / "go").touch()
    code, out, err = run_cli("remote", "attach", "lab")
    assert code == 0, err
    assert "finished" in out
    assert "epoch 2.0  test: accuracy" in err
    assert err.count("world size 1") == 1

    code, out, err = run_cli("remote", "pull", "lab", "first")
    assert code == 0, err
    pulled = RunDirectory(folder / "runs" / "first")
    (folder / "go").touch()
    assert run_cli("train", "my job.yaml", "--name", "local").code == 0
    local = RunDirectory(folder / "runs" / "local")
    assert_same_bits(pulled, local)
    assert losses(pulled) == losses(local)
    assert metrics(pulled) == metrics(local)
    best = "checkpoints/best/model.safetensors"
    assert (pulled.path / best).read_bytes() == (local.path / best).read_bytes()
    assert outcomes(pulled)[-1]["step"] == outcomes(local)[-1]["step"] == 46
    assert (pulled.checkpoints / "best").resolve().parent == pulled.checkpoints.resolve()
    assert (pulled.logs / "rank-0.log").is_file()
    # Export and resume find the recipe where it is here.
    assert load_job(pulled.job_file).job.recipe == f"{folder}/waiting.py:Waiting"
    assert not files_with(SECRET, tmp_path, user.server.folder)
    assert not list(tmp_path.rglob("pwned"))

    assert run_cli("remote", "pull", "lab", "first").code == 0, "it may have got further"
    with lock_run(pulled):
        pulled.log_file(0).write_text("trained further here")
    code, _, err = run_cli("remote", "pull", "lab", "first")
    assert code == 2 and "error[run-exists]" in err and "--output" in err
    assert pulled.log_file(0).read_text() == "trained further here"


@pytest.mark.full
def test_stop_saves_and_its_exit_code_comes_back(user, folder):
    code, out, err = run_cli(
        "remote", "train", "lab", "my job.yaml", "--name", "second", "--detach"
    )
    assert code == 0, err
    (sent,) = [line for line in out.splitlines() if "sent along: " in line]
    assert {"NCCL_DEBUG", "WANDB_API_KEY"} <= set(sent.replace(",", " ").split())
    assert SECRET not in out + err
    run = RunDirectory(project_of(user) / "runs" / "second")
    wait_for(lambda: steps(run) >= 2, log=user.far / "started/second/output.log")
    record = json.loads((user.far / "started/second/run.json").read_text())
    assert set(record) == {"name", "token", "project", "run", "argv", "time"}
    assert (user.far / "started/second").stat().st_mode & 0o077 == 0
    taken = run_cli("remote", "train", "lab", "my job.yaml", "--name", "second")
    assert taken.code == ExitCode.USAGE
    assert "error[remote-run-exists]" in taken.err
    assert "running" in run_cli("remote", "runs", "lab").out
    watched = json.loads(run_cli("watch", "--remote", "lab", "--json").out)
    assert (watched["status"], watched["total_steps"]) == ("running", 46)
    assert watched["step"] >= 1
    picture = run.media / "step-1" / "shown.png"
    picture.parent.mkdir(parents=True)
    picture.write_bytes(b"\x89PNG" + bytes(3 << 20))
    with mirrored("lab", "second") as mirror:
        shown = mirror.run.media / "step-1" / "shown.png"
        wait_for(shown.exists)
        assert shown.read_bytes() == picture.read_bytes()
        assert mirror.run.job_file.read_text() == run.job_file.read_text()
    code, out, err = run_cli("remote", "stop", "lab")
    assert code == 0, err
    assert "second: stopped, saved" in out
    assert outcomes(run)[-1]["status"] == "stopped"
    assert (run.checkpoints / f"checkpoint-{outcomes(run)[-1]['step']}").is_dir()
    assert run_cli("remote", "attach", "lab", "second").code == ExitCode.STOPPED
    code, out, err = run_cli("watch", "second", "--remote", "lab")
    assert code == 0, err
    assert "second  stopped" in out
    again = run_cli("remote", "stop", "lab", "second")
    assert "not running" in again.out
    assert "(did you mean `second`?)" in run_cli("remote", "attach", "lab", "second2").err


@pytest.mark.full
def test_what_is_wrong_with_the_job_over_there_is_shown_here(user, folder):
    answer = run_cli("remote", "train", "lab", "my job.yaml", "--cpu", "1", "options.width=-3")
    assert answer.code == ExitCode.USAGE, answer.err
    assert "width" in answer.err


@pytest.mark.full
def test_a_stopped_run_goes_on(user, folder):
    assert run_cli("remote", "train", "lab", "my job.yaml", "--name", "third", "--detach").code == 0
    project = project_of(user)
    run = RunDirectory(project / "runs" / "third")
    wait_for(lambda: steps(run) >= 2, log=user.far / "started/third/output.log")
    assert run_cli("remote", "stop", "lab", "third").code == 0
    (project / "go").touch()
    code, out, err = run_cli("remote", "train", "lab", "--resume", "third")
    assert code == 0, err
    assert "46 steps in all" in out
    assert [outcome["status"] for outcome in outcomes(run)][-1] == "finished"
    assert run_cli("remote", "pull", "lab", "third", "--best").code == 0
    kept = list((folder / "runs" / "third" / "checkpoints").glob("checkpoint-*"))
    assert len(kept) == 1


@pytest.mark.full
def test_an_environment_is_made_from_a_wheelhouse_without_the_internet(
    tmp_path_factory, tmp_path, monkeypatch
):
    import sysconfig

    from phalanx.places.remote.environment import write_wheel

    # What Phalanx needs is found beside the environment, Phalanx itself is not.
    server = Server(tmp_path_factory.mktemp("sshd-bare"), sysconfig.get_path("purelib"))
    user = User(server, tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)
    try:
        wheels = tmp_path / "wheels"
        wheels.mkdir()
        write_wheel(wheels)
        far = ["--path", str(user.far), "--site-packages"]
        assert run_cli("remote", "add", "bare", server.target, *far).code == 0
        words = ["digits", "--cpu", "1", "--steps", "3", "--wheelhouse", "wheels"]
        code, out, err = run_cli("remote", "train", "bare", *words, "--name", "one")
        assert code == 0, out + err
        assert "env: made" in out
        installed = list(user.far.glob("env/lib/python*/site-packages/phalanx/cli/remote.py"))
        assert installed
        code, out, err = run_cli("remote", "train", "bare", *words, "--name", "two")
        assert code == 0, out + err
        assert "env: as it was" in out
    finally:
        user.end()
        server.end()


@pytest.mark.full
def test_check_answers_everything_at_once(user, folder):
    code, out, err = run_cli(
        "remote", "check", "lab", "my job.yaml", "options.width=8", "--include", "data/raw"
    )
    assert code == 0, err
    for row in ("ssh", "python", "packages", "path", "push", "files", "ranks", "batch", "torch"):
        assert f"\n{row} " in f"\n{out}", row
    assert "writable" in out


def test_refusals_are_findings(user, folder):
    def check(*argv):
        answer = run_cli("remote", "check", *argv)
        assert answer.code in (ExitCode.LAUNCH, ExitCode.MACHINE, ExitCode.USAGE), answer.out
        assert "fix: " in answer.err
        return answer.err

    name, _, port = user.server.target.rpartition(":")
    add = ["remote", "add", "other"]
    assert "(did you mean `lab`?)" in check("lba")
    assert run_cli(*add, "phalanx.invalid").code == 0
    assert "error[remote-resolve]" in check("other")
    assert run_cli(*add, f"{name}:1").code == 0
    assert "error[remote-refused]" in check("other")
    user.use(key="other")
    assert "error[remote-denied]" in check("lab")
    user.use(known="nothing")
    unknown = check("lab")
    assert "error[remote-host-key]" in unknown
    assert f"ssh -p {port} {name}" in unknown
    user.use(known="changed")
    assert "error[remote-host-key-changed]" in check("lab")
    user.use()
    assert run_cli(*add, user.server.target, "--python", "/no such/python").code == 0
    assert "error[remote-python]" in check("other")
    old = user.home / "old python"
    old.write_text("#!/bin/sh\necho 3.8.10\n")
    old.chmod(0o755)
    assert run_cli(*add, user.server.target, "--python", str(old)).code == 0
    assert "is 3.8.10" in check("other")
    assert run_cli(*add, user.server.target, "--path", "/dev/null/x", "--python", PYTHON).code == 0
    assert "error[remote-unwritable]" in check("other")


@pytest.fixture
def small_disk(tmp_path):
    """(folder, bytes that do not fit into it): a file system of 1 MiB, or where none can be mounted
    this one and a file that has 8 TiB only by name."""
    folder = tmp_path / "small"
    folder.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(argv, capture_output=True).returncode != 0:
        yield folder, 8 << 40
        return
    yield folder, 3 << 20
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_is_said_with_both_numbers(user, folder, small_disk):
    disk, size = small_disk
    with (folder / "large.bin").open("wb") as file:
        file.truncate(size)
    add = ["remote", "add", "small", user.server.target, "--path", str(disk / "p")]
    assert run_cli(*add, "--python", PYTHON).code == 0
    answer = run_cli("remote", "train", "small", "my job.yaml")
    assert answer.code == ExitCode.MACHINE
    assert "error[remote-disk]" in answer.err
    assert f"{size >> 40 or size >> 20}.0 " in answer.err.partition("are needed")[0]
    assert re.search(r"has [\d.]+ [KMGT]iB left", answer.err)
    assert not list(disk.rglob("large.bin"))


def test_what_the_push_leaves_out_is_said_before_it_starts(user, folder):
    (folder / "data/raw/rows.csv").write_text("1")
    argv = ["my job.yaml", "init_from=data/raw/rows.csv"]
    answer = run_cli("remote", "train", "lab", *argv)
    assert answer.code == ExitCode.USAGE
    assert "error[remote-data]" in answer.err
    assert "--include data/raw/rows.csv" in answer.err
    assert not (user.far / "started").exists()


def test_secrets_in_words_are_refused(user, folder):
    answer = run_cli("remote", "train", "lab", "my job.yaml", f"options.note={SECRET}")
    assert "error[remote-secret]" in answer.err
    assert SECRET not in answer.err.replace(f"options.note={SECRET}", "")


def test_a_machine_without_python_and_rsync_says_both_at_once(user, folder, tmp_path_factory):
    bare = tmp_path_factory.mktemp("bare")
    (bare / "bin").mkdir()
    (bare / "bin" / "sh").symlink_to("/bin/sh")
    server = Server(bare, "/nowhere", path=bare / "bin")
    try:
        assert run_cli("remote", "add", "bare", server.target).code == 0
        server.know(user.server.folder / "known-bare", (bare / "host.pub").read_text())
        shutil.copy(user.server.folder / "id.pub", bare / "authorized_keys")
        user.use(known="known-bare")
        answer = run_cli("remote", "train", "bare", "my job.yaml")
    finally:
        server.end()
    assert answer.code == ExitCode.MACHINE
    assert "error[rsync-missing]" in answer.err
    assert "error[remote-python]: there is no Python 3.11 or newer" in answer.err


def test_no_rsync_here(user, folder, monkeypatch):
    programs = user.home / "few"
    programs.mkdir()
    shutil.copy(user.home / "bin" / "ssh", programs / "ssh")
    monkeypatch.setenv("PATH", str(programs))
    answer = run_cli("remote", "train", "lab", "my job.yaml")
    assert "error[rsync-missing]" in answer.err
