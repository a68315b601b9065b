"""Runs the command line in this process: quick, with the machine of a fixture where asked."""

import importlib
import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

from phalanx.cli.main import run
from phalanx.machine import Machine
from phalanx.output import console

MACHINES = Path(__file__).parents[1] / "fixtures" / "machines"


class Answer(NamedTuple):
    code: int
    out: str
    err: str


def run_cli(*argv):
    """One command line -> (exit code, stdout, stderr)."""
    out, err = io.StringIO(), io.StringIO()
    _forget_consoles()
    with redirect_stdout(out), redirect_stderr(err):
        code = run(argv)
    _forget_consoles()
    return Answer(code, out.getvalue(), err.getvalue())


def _forget_consoles():
    console.stdout.cache_clear()
    console.stderr.cache_clear()


def fixture_machine(name):
    return Machine.from_json(json.loads((MACHINES / f"{name}.json").read_text()))


def pretend_machine(monkeypatch, name):
    """Let `plan` and `train` find the machine of a fixture instead of this one."""
    machine = fixture_machine(name)
    # By its module: as an attribute of the package `launch` may be the function by then.
    prepare = importlib.import_module("phalanx.prepare.plan")
    monkeypatch.setattr(prepare, "probe_machine", lambda *a, **k: machine)
