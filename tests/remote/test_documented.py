"""Every `phalanx remote` of README and docs, one after the other, with a real sshd."""

import pytest

from phalanx.places.remote.environment import write_wheel
from tests.cli.command import run_cli
from tests.cli.documented import asked
from tests.cli.reader import write_jobs
from tests.remote.conftest import PYTHON

SERVER = "alice@gpu.example.org"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    folder = tmp_path / "mine"
    (folder / "wheelhouse").mkdir(parents=True)
    write_jobs(folder)
    write_wheel(folder / "wheelhouse")
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.full
def test_a_machine_of_the_reader_s(user, folder):
    there = [user.server.target, "--path", str(user.far), "--python", PYTHON]
    for command, words in asked("remote"):
        if SERVER in words:
            place = words.index(SERVER)
            words[place : place + 1] = there  # its environment is there already
        code, out, err = run_cli(*words)
        assert code == 0, f"{command}\n{out}{err}"
    assert list((folder / "runs").glob("*/checkpoints/best")), "pulled"
