"""Every command of README and docs for the detection recipe, with a small model and few images."""

import shutil
from pathlib import Path

import pytest

from tests.cli.documented import asked, assert_runs
from tests.cli.kept_launcher import answers_in

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def folder(tmp_path_factory, shapes, small):
    path = tmp_path_factory.mktemp("docs")
    shutil.copy(small, path / "small.yaml")
    (path / "configs").symlink_to(Path(shapes).parent)
    with answers_in(path):
        yield path


@pytest.mark.parametrize("question", asked("detection"), ids=str)
def test_detection(question, folder, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    for exported in folder.glob("runs/shapes/final_model/best-*"):  # nothing is overwritten
        shutil.rmtree(exported)
    is_refused = "tensorrt" in question.words  # a Finding where there is no GPU
    assert_runs(question, exit_code=3 if is_refused else 0)
