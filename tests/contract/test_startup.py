"""The commands that need no torch answer without it, and at once."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

HELP_CPU_S = 0.5

_ASK = """
import json, sys
from phalanx.cli.main import run
code = run(sys.argv[1:])
loaded = [name for name in ("torch", "sklearn", "tensorboard") if name in sys.modules]
sys.stderr.write("LOADED " + json.dumps([code, loaded]))
"""


@pytest.mark.parametrize(
    "argv",
    [
        ["--help"],
        ["check", "--help"],
        ["plan", "--help"],
        ["train", "--help"],
        ["verify", "--help"],
        ["slurm", "--help"],
        ["slurm", "digits", "--partition", "gpu", "--gpus-per-node", "4", "--print"],
        ["remote", "--help"],
        ["remote", "list"],
        ["launch", "--help"],
        ["launch", "--cpu", "2", "--dry-run", "-m", "train"],
        ["watch", "--help"],
        ["recipes"],
        ["explain"],
        ["explain", "optimizer"],
    ],
    ids=" ".join,
)
def test_torch_is_not_imported(argv, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", _ASK, *argv],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    code, loaded = json.loads(done.stderr.rpartition("LOADED ")[2])
    assert code == 0, done.stderr
    assert "torch" not in loaded, f"phalanx {' '.join(argv)} imported {loaded}"


def test_help_answers_within_half_a_second_of_cpu_time(tmp_path):
    phalanx = Path(sysconfig.get_path("scripts"), "phalanx")
    used = [_cpu_seconds([str(phalanx), "--help"], tmp_path) for _ in range(3)]
    assert min(used) < HELP_CPU_S, f"CPU seconds of three tries: {used}"


def _cpu_seconds(argv, cwd):
    """User and system time of one child, by wait4: other children do not count."""
    with (cwd / "out").open("wb") as out:
        child = subprocess.Popen(argv, cwd=cwd, stdout=out, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0, (cwd / "out").read_text()
    return round(usage.ru_utime + usage.ru_stime, 3)
