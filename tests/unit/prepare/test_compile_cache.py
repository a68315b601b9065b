"""Compiled code is kept where only its user can write."""

import json
import os
from pathlib import Path

import pytest

from phalanx.prepare.compile_cache import compile_cache_variables
from phalanx.run.directory import RunDirectory

MACHINE = Path(__file__).parents[2] / "fixtures" / "machines" / "8xa100.json"


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    run = RunDirectory(tmp_path / "run")
    run.path.mkdir()
    run.machine_file.write_text(MACHINE.read_text())
    return run


def test_code_is_kept_for_the_user_by_torch_and_gpu(run, tmp_path):
    folder = Path(compile_cache_variables(run)["TORCHINDUCTOR_CACHE_DIR"]).parent
    assert folder.parent == tmp_path / "user" / "phalanx" / "compiled"
    assert (
        "A100" in folder.name
        and json.loads(MACHINE.read_text())["torch"]["version"].replace("+", "-") in folder.name
    )
    assert folder.stat().st_mode & 0o077 == 0, "nobody else can write, or read"
    assert compile_cache_variables(run) == compile_cache_variables(run)


def test_a_folder_that_others_can_write_to_is_not_used(run):
    folder = Path(compile_cache_variables(run)["TRITON_CACHE_DIR"]).parent
    folder.chmod(0o777)
    assert Path(compile_cache_variables(run)["TRITON_CACHE_DIR"]).is_relative_to(run.path)
    folder.chmod(0o700)
    if os.getuid() == 0:
        os.chown(folder, 12345, -1)
        assert Path(compile_cache_variables(run)["TRITON_CACHE_DIR"]).is_relative_to(run.path)
