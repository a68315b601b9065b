"""Every command of README and docs for the detection recipe, with a small model and few images."""

import shutil
from pathlib import Path

import pytest

from tests.cli.command import run_cli
from tests.cli.documented import asked, assert_as_shown
from tests.cli.kept_launcher import answers_here

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def folder(tmp_path_factory, shapes, small):
    path = tmp_path_factory.mktemp("docs")
    shutil.copy(small, path / "small.yaml")
    (path / "configs").symlink_to(Path(shapes).parent)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        patch.setenv("XDG_CACHE_HOME", str(path / "cache"))
        with answers_here(patch):
            yield path


@pytest.mark.parametrize("question", asked("detection"), ids=str)
def test_detection(question, folder, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    command, words = question
    for exported in folder.glob("runs/shapes/final_model/best-*"):  # nothing is overwritten
        shutil.rmtree(exported)
    code, out, err = run_cli(*words)
    refused = 3 if "tensorrt" in words else 0  # a Finding where there is no GPU
    assert code == refused, f"{command}\n{out}{err}"
    assert_as_shown(command, out + err)
