"""The launcher: torch is imported once, and a rank forked from it is as good as a new process."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from phalanx.codec import to_json
from phalanx.errors import ExitCode
from phalanx.planner.schema.trace import EAGER
from phalanx.prepare.launcher import READ_LATE, Launcher, LauncherError
from phalanx.prepare.trace import trace_recipe
from phalanx.run.directory import RunDirectory
from phalanx.run.launching import Share, StartRanks
from tests.ranks.command import finish, is_alive, phalanx, rank_pids, start, wait_for_step
from tests.ranks.runs import RECIPE

# A recipe that writes what its process is like into the rank's log.
LOOK = """
import json, os, random, sys
import numpy as np
if "RANK" in os.environ:
    print(json.dumps({
        "asked": os.environ.get("ASKED"),
        "begun": os.environ.get("BEGUN"),
        "argv": sys.argv[1:],
        "session": os.getsid(0) == os.getpid(),
        "input": os.readlink("/proc/self/fd/0"),
        "numbers": [random.random(), np.random.random()],
    }))
"""

TWICE = """
import os, sys, psutil, phalanx
for asked in ("first", "second"):
    os.environ["ASKED"] = asked
    os.environ.pop("BEGUN", None)
    phalanx.train("job.yaml", name=asked)
    assert not psutil.Process().children(), "a launcher is left"
assert "torch" not in sys.modules, "the command has imported torch"
"""


def write_job(folder, **changes):
    recipe = Path(RECIPE.rpartition(":")[0]).read_text()
    at = recipe.index("import ")
    (folder / "look.py").write_text(f"{recipe[:at]}{LOOK}\n{recipe[at:]}")
    lines = {
        "recipe": "look.py:Parity",
        "steps": 2,
        "global_batch_size": 10,
        "precision": "fp64",
        "logging": "{every: 1, tensorboard: false}",
        "devices": "{cpu: 2}",
        **changes,
    }
    (folder / "job.yaml").write_text("".join(f"{key}: {value}\n" for key, value in lines.items()))


def test_ranks_are_like_new_processes_and_the_command_imports_no_torch(tmp_path):
    write_job(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", TWICE],
        cwd=tmp_path,
        env={**os.environ, "BEGUN": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    looks = []
    for name in ("first", "second"):
        run = RunDirectory(tmp_path / "runs" / name)
        for rank in (0, 1):
            log = run.log_file(rank).read_text().splitlines()
            looks.append(json.loads(next(line for line in log if line.startswith("{"))))
            assert looks[-1]["argv"] == [str(run.path)]
    assert [look["asked"] for look in looks] == ["first", "first", "second", "second"]
    assert all(look["begun"] is None for look in looks), "a variable that is gone is gone in ranks"
    assert all(look["session"] and look["input"] == "/dev/null" for look in looks)
    assert len({tuple(look["numbers"]) for look in looks}) == 4, "ranks drew the same numbers"


def test_a_killed_launcher_leaves_no_ranks_and_is_said(tmp_path):
    write_job(tmp_path, steps=1000000)
    process = start("train", "job.yaml", cwd=tmp_path)
    pids = rank_pids(wait_for_step(process, tmp_path, 5)).values()
    (launcher,) = {psutil.Process(pid).ppid() for pid in pids}
    assert launcher != process.pid
    os.kill(launcher, signal.SIGKILL)
    code, _, err = finish(process)
    assert code == ExitCode.LAUNCH
    assert "error[launch-failed]" in err
    assert f"exit code {-signal.SIGKILL}" in err
    deadline = time.monotonic() + 20
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(is_alive, pids))


def test_a_rank_that_leaves_too_early_is_said(tmp_path):
    write_job(tmp_path)
    with (tmp_path / "look.py").open("a") as recipe:
        recipe.write("\nif 'RANK' in os.environ:\n    os._exit(0)\n")
    code, _, err = phalanx("train", "job.yaml", "--cpu", "1", cwd=tmp_path)
    assert code == ExitCode.FAILED
    assert "error[rank-exited]: rank 0 left with exit code 0 before the end" in err


IMPORTS = """
import os, sys, torch
read = set()
real = os._Environ.__getitem__
os._Environ.__getitem__ = lambda self, name: read.add(name) or real(self, name)
from phalanx.engine.launcher.serve import import_for_ranks
import_for_ranks()
from phalanx.engine.launcher.agent import can_fork
assert {"torch._dynamo", "phalanx.engine.rank.worker"} <= sys.modules.keys()
assert len(os.listdir("/proc/self/task")) == 1, "a process with threads cannot be forked safely"
assert can_fork() and not torch.cuda.is_initialized()
print(*read)
"""


def test_imports_start_no_thread_and_read_nothing_that_ranks_are_told_later(tmp_path):
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "made")}
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    # torch makes this folder when it is imported, and asks again whenever it needs it.
    assert READ_LATE & set(done.stdout.split()) <= {"TORCHINDUCTOR_CACHE_DIR"}


LEAVES = """
    def check(self):
        Path(self.options.file).write_text(str(os.getppid()))
        os._exit(7)
"""


@pytest.mark.full
def test_the_launcher_answers_what_a_recipe_is_and_outlives_one_that_leaves(tmp_path):
    file, recipe = tmp_path / "parent", tmp_path / "leaves.py"
    recipe.write_text(
        "import os\nfrom pathlib import Path\nfrom phalanx.recipe import Options, Recipe\n"
        "class Leaves(Recipe):\n    class Options(Options):\n        file: str\n" + LEAVES
    )
    before = psutil.Process().children()
    with Launcher() as launcher:
        launcher.start({})
        (own,) = set(psutil.Process().children()) - set(before)
        trace, (finding,) = trace_recipe(f"{recipe}:Leaves", {"file": str(file)}, EAGER, launcher)
        assert trace is None
        assert "exit code 7" in finding.why
        assert file.read_text() == str(own.pid), "a fork of the launcher"
        answered, findings = trace_recipe(RECIPE, {}, EAGER, launcher)
        assert own.is_running()
    assert not findings
    alone, _ = trace_recipe(RECIPE, {})
    measured = ("fetch", "fetch_s")
    for found in (answered, alone):
        assert found is not None
    assert {k: v for k, v in to_json(answered).items() if not k.startswith(measured)} == {
        k: v for k, v in to_json(alone).items() if not k.startswith(measured)
    }


def test_a_broken_torch_is_told_with_its_last_words_and_nothing_is_left(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart is not there')\n")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    monkeypatch.setenv("PYTHONPATH", path)
    before = set(psutil.Process().children())
    with Launcher() as launcher:
        launcher.start({})
        idle = set(psutil.Process().children()) - before
        share = Share(run=tmp_path, ranks=1, attempt=0)
        launcher.request(StartRanks(share, {**os.environ, "NEW": "1"}))
        assert not any(process.is_running() for process in idle), "another environment, a new one"
        with pytest.raises(LauncherError, match=r"exit code 1 .*libcudart is not there"):
            launcher.receive(30)
    assert set(psutil.Process().children()) <= before
