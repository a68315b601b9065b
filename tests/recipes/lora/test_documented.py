"""Every command of README and docs for the lora recipe, with a small model and few rows."""

import shutil

import pytest

from tests.cli.command import run_cli
from tests.cli.documented import asked, assert_as_shown
from tests.cli.kept_launcher import answers_here

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def folder(tmp_path_factory, model, rows):
    path = tmp_path_factory.mktemp("docs")
    shutil.copytree(model, path / "model")
    shutil.copy(rows, path / "rows.jsonl")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        patch.setenv("XDG_CACHE_HOME", str(path / "cache"))
        with answers_here(patch):
            yield path


@pytest.mark.parametrize("question", asked("lora"), ids=str)
def test_fine_tuning(question, folder, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    command, words = question
    code, out, err = run_cli(*words)
    assert code == 0, f"{command}\n{out}{err}"
    assert_as_shown(command, out + err)
